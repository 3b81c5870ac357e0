"""A backend `cpu` of Triton, of which no index has one: vLLM asks for it where there is no GPU.

It compiles nothing. With TRITON_INTERPRET=1 Triton runs kernels in Python and asks no backend.
"""


def suit_the_interpreter() -> None:
    """Have vLLM filter logits by `top_k` and `top_p` in torch: Triton's interpreter does not run its kernel of that.

    And have it copy a recurrent state in one piece: pieces keep a GPU busy, and the interpreter runs one after another.
    And have it take logarithms of what is left behind a rejected draft without a GPU's library. It is a plugin of
    vLLM's.
    """
    from types import SimpleNamespace

    from triton import language
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker import mamba_utils
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

    topk_topp_sampler.HAS_TRITON = False
    mamba_utils._TEMPORAL_TILES = 1
    rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: language.log(1.0 + x))
