"""{{ summary }}.

A decode step of speculative decoding, compiled by specc for exactly that: `load` it, `bind` an engine's
forwards, then {{ calls }}.

    import {{ package }} as k

    program = k.load("cuda:0")  # or "cpu"
    step = program.bind({{ bound }})
{% if samples -%}
{{ "    " }}step.set_sampling(rows, params)  # a k.Sampling for each request, before its prefill
{% endif -%}
{{ "    " }}first = step.prefill(k.Batch(rows, lengths{% if prompts %}, prompt_tokens{% endif %})).to_host()
{%- if given %}
    result = step.commit(k.Batch(rows, lengths), logits).to_host()  # rows: of {{ holds }}
    drafts = step.propose(k.Batch(rows, lengths){% if given | length > 1 %}, hidden{% endif %}).to_host()
{%- else %}
    result = step.decode(k.Batch(rows, lengths)).to_host()  # rows: of {{ holds }}
{%- endif %}
    result.tokens(0)  # those that the first request of the batch has emitted
{% if shapes | length > 1 %}
It was compiled for the shapes {{ shapes | join(", ") }}: `step.at("{{ shapes[0] }}")` is the step of one.
Sizes below are those of {{ shapes[-1] }}.
{% endif %}
What the engine brings:

* `{{ holds }}` {{ table }}: {{ held }} of a request, which has a row from 1 on; it may
  have fewer rows.
{% if moved -%}
* `kv_pools`: the KV buffers of the {{ moved | join(" and the ") }}, by owner a list of tensors [slots, ...],
  layer by layer.
{% endif -%}
{% if parts -%}
* `state_pools`: the states of the target's recurrent layers, which accepted nodes advance. Of each layer there is
{%- for part in parts %}
  ({{ part }}){{ "," if not loop.last else "." }}
{%- endfor %}
{% elif states == "state.point" -%}
* `state_pools`: the states of the target's recurrent layers, each T[rows, snapshots, ...], with a row for every pool
  row and a snapshot more than a shape has nodes. The program carries which one a request goes on from.
{% elif states -%}
* `state_pools`: the states of the target's recurrent layers, pairs of what is kept T[rows, ...] and what is pending
  T[requests, N, ...].
{% endif -%}
{% if table_types -%}
* `tables`: {{ table_types | join(", ") }}.
{% endif -%}
* `callbacks`: its forwards, which are these methods, called by keyword; each returns `Forward`, or any object
  with what stands behind the arrow (b: requests, T: tokens of all prompts, C: columns of `{{ holds }}`).

{% for text in forwards -%}
{{ text }}
{% endfor %}
{%- if given %}
* what the target says of the bonus and the drafts of every request, which the engine runs it over:

{% for text in given -%}
{{ text }}
{% endfor %}
{%- endif %}
{{ "`commit`" if given else "`decode`" }} hands back, on the device, and by `to_host` as lists:

{% for text in decoded -%}
{{ text }}
{% endfor %}
{%- if given %}
`propose`:

{% for text in proposed -%}
{{ text }}
{% endfor %}
{%- endif %}
and `prefill`:

{% for text in prefilled -%}
{{ text }}
{% endfor %}
All errors derive from `SpeccError`: `load` raises DamagedWheelError, UnsupportedTorchError,
UnsupportedDeviceError and UnsupportedDriverError, `bind` BindError,
{{ calls }} BatchError and ForwardContractError
{%- if samples %},
`set_sampling` SamplingError{% endif %}. What is said at each of them has the rest.
Importing the package is cheap: torch is imported by `load`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ._runtime.api import *  # noqa: F403
    from ._runtime.plan.files.manifest import Manifest
    from ._runtime.plan.plan import Plan
    from ._runtime.plan.shape import Shape
    from ._runtime.program import Program

    __version__: str
    plan: Plan
    plans: dict[Shape, Plan]
    manifest: Manifest

_ROOT = Path(__file__).parent


def load(device: str | torch.device = "cuda", *, verify: bool = True) -> Program:
    """Load the program onto a device; compiles nothing.

    Args:
        device: `cuda`, `cuda:1`, ... or `cpu` for the torch reference backend.
        verify: compare every file with its digest first.

    Raises DamagedWheelError, UnsupportedTorchError, UnsupportedDeviceError, UnsupportedDriverError, or PlanError for a
    fault of the compiler.
    """
    from ._runtime.plan.files.manifest import Manifest

    if verify:  # before anything else is imported: a damaged runtime must not show as some other error
        Manifest.read(_ROOT).verify(_ROOT)
    from ._runtime.program import load as load_program

    return load_program(_ROOT, device, verify=False)


def __getattr__(name: str) -> Any:
    """Resolve the public names when they are first used: plans, the manifest, and those of the runtime."""
    if name == "__all__":
        value: Any = __dir__()
    elif name == "plan":
        from ._runtime.plan.files.plan_json import load_plan

        value = load_plan(_ROOT)
    elif name == "plans":
        from ._runtime.plan.files.manifest import Manifest
        from ._runtime.plan.files.plan_json import load_plans

        value = load_plans(_ROOT, Manifest.read(_ROOT))
    elif name in ("manifest", "__version__"):
        from ._runtime.plan.files.manifest import Manifest

        found = Manifest.read(_ROOT)
        value = found if name == "manifest" else found.version
    else:
        try:
            value = getattr(importlib.import_module("._runtime", __name__), name)
        except AttributeError as error:
            if type(error) is not AttributeError:  # it says what the program was built without
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, whether they have been used yet or not."""
    own = ("__version__", "load", "manifest", "plan", "plans")
    return sorted({*dir(importlib.import_module("._runtime", __name__)), *own})
