"""The public names of the runtime, a line each; an engine finds them in the package of its program.

Errors stand in `errors`, which imports nothing, so that a damaged file can be told by its own error.
"""

from .batch import Batch as Batch
from .capabilities.collective import GroupCollective as GroupCollective
from .capabilities.sampling import Sampling as Sampling
from .capabilities.shape import AcceptanceShape as AcceptanceShape
from .capabilities.shape import FixedShape as FixedShape
from .capabilities.shape import ShapePolicy as ShapePolicy
from .capabilities.step_times import measure_step_times as measure_step_times
from .capabilities.step_times import read_step_times as read_step_times
from .capabilities.step_times import write_step_times as write_step_times
from .entry.external import Forward as Forward
from .entry.health import faults as faults
from .entry.result import HostCopy as HostCopy
from .entry.result import HostPrefill as HostPrefill
from .entry.result import HostProposal as HostProposal
from .entry.result import HostResult as HostResult
from .entry.result import PrefillResult as PrefillResult
from .entry.result import ProposeResult as ProposeResult
from .entry.result import Score as Score
from .entry.result import StepResult as StepResult
from .errors import BatchError as BatchError
from .errors import BindError as BindError
from .errors import CarryError as CarryError
from .errors import CollectiveError as CollectiveError
from .errors import DamagedWheelError as DamagedWheelError
from .errors import FieldError as FieldError
from .errors import ForwardContractError as ForwardContractError
from .errors import LackingError as LackingError
from .errors import MissingFieldError as MissingFieldError
from .errors import PlanError as PlanError
from .errors import RecordError as RecordError
from .errors import SamplingError as SamplingError
from .errors import SchemaMismatchError as SchemaMismatchError
from .errors import SpeccError as SpeccError
from .errors import StepTimesError as StepTimesError
from .errors import TornError as TornError
from .errors import UnsupportedDeviceError as UnsupportedDeviceError
from .errors import UnsupportedDriverError as UnsupportedDriverError
from .errors import UnsupportedTorchError as UnsupportedTorchError
from .graphs.capture import Replays as Replays
from .memory.footprint import Memory as Memory
from .plan.files.manifest import Manifest as Manifest
from .plan.plan import Plan as Plan
from .program import Program as Program
from .program import load as load
from .ranks import Collective as Collective
from .rotated import RotatedStep as RotatedStep
from .state.carry import Carry as Carry
from .state.peer import check_peer as check_peer
from .state.peer import schema as schema
from .state.peer import schema_digest as schema_digest
from .state.transfer import RecordField as RecordField
from .state.transfer import RecordLayout as RecordLayout
from .step import Step as Step
