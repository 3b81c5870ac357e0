"""The side that prefills: prompts in, their keys, values and records out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from specc.lab.engine.disaggregation.messages import (
    END,
    REQUEST,
    STATE,
    WITHDRAWN,
    Channel,
    Message,
    Patience,
    greet,
    send,
)
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import EngineError, RequestTooLongError, TransferError
from specc.lab.engine.serving.handover import Handover
from specc.lab.engine.serving.requests.request import FIRST, Completion, Request, Sampling, StopConditions


class PrefillWorker:
    """Prefills prompts and sends each to the peer that decodes. Nothing of a request stays, sent or not.

    One thread: `step` prefills what fits into the engine at once, then sends it. `names` has the request ids of the
    engine with the names of what waits.
    """

    def __init__(self, engine: Engine, channel: Channel, patience: Patience | None = None) -> None:
        """Agree with the peer; SchemaMismatchError, there too, when its program is another one.

        engine: used for nothing else. Raises TransferError when the peer is gone.
        """
        self.engine, self.channel, self.patience = engine, channel, patience or Patience()
        self.names: dict[int, str] = {}
        self._lost: TransferError | None = None
        self._max_context = greet(engine, channel, self.patience, first=True)

    @property
    def has_work(self) -> bool:
        """Whether some prompt waits."""
        return bool(self.names)

    def add(
        self,
        name: str,
        prompt: str | Sequence[int],
        conditions: StopConditions | None = None,
        *,
        sampling: Sampling | None = None,
    ) -> None:
        """Queue a prompt, text or token ids, under a name that no other request has, and announce it to the peer.

        conditions: when the peer is to stop; sampling: how tokens are drawn, here and there; both by default as
        `Engine.add`, which raises SamplingError too. Waits while the peer has as many requests as it can hold. Raises
        RequestTooLongError when the request can never fit, here or there, EngineError when another one of its name
        waits, TransferError when the peer is gone.
        """
        if self._lost is not None:
            raise TransferError(name, self._lost.reason)
        if name in self.names.values():
            raise EngineError(f"a request {name!r} waits already")
        conditions = conditions or StopConditions(eos_token_ids=self.engine.target.eos_token_ids)
        ids = self.engine.encode(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
        total = len(ids) + conditions.max_new_tokens
        for whose, takes, holds in (
            ("the peer's", total, self._max_context),
            ("the engine's", len(ids) + FIRST.max_new_tokens, self.engine.scheduler.max_context),
        ):
            if takes > holds:
                raise RequestTooLongError(f"the request takes {takes} tokens, {whose} context holds {holds}")
        grammar = {} if sampling is None else dict(sampling.grammar)
        content = asdict(conditions) | {"eos_token_ids": sorted(conditions.eos_token_ids)}
        message = Message(REQUEST, name, {"prompt": ids, "conditions": content, "grammar": grammar})
        request_id = self.engine.add(ids, FIRST, sampling=sampling)
        self.names[request_id] = name
        try:
            self._send(message)
        except TransferError:
            self._forget(request_id)
            raise

    def step(self) -> dict[str, TransferError | None]:
        """Prefill what fits at once and send it: the names of these requests, each with what kept it from going.

        Once the peer is gone, all that wait are among them. Raises StepFailedError as `Engine.prefill`: step again to
        retry, or `abort` what was in it, see `names`; one that fails again and again is given up by the next step.
        """
        gone: dict[str, TransferError | None] = {}
        prefilled = self.engine.prefill()
        for completion in self.engine.collect():
            name = self.names[completion.request_id]
            gone[name] = self._give_up(name, completion)
        for request in prefilled:
            name = self.names[request.request_id]
            try:
                gone[name] = self._pass_on(name, request)
            finally:
                self._forget(request.request_id)
        if self._lost is not None:
            gone |= {name: TransferError(name, self._lost.reason) for name in self.names.values()}
            for request_id in list(self.names):
                self._forget(request_id)
        return gone

    def abort(self, name: str) -> bool:
        """Give up a request that waits, between two steps, and tell the peer; False if there is none of this name."""
        for request_id, known in self.names.items():
            if known == name:
                self._forget(request_id)
                self._withdraw(name, "given up where it was to be prefilled")
                return True
        return False

    def close(self) -> None:
        """Tell the peer that nothing comes any more, and let go of the channel and of what waits."""
        with suppress(TransferError):
            self._send(Message(END))
        self._lost = self._lost or TransferError(None, "this side has closed the connection")
        for request_id in list(self.names):
            self._forget(request_id)
        self.channel.close()

    def _pass_on(self, name: str, request: Request) -> TransferError | None:
        """Send the state of a prefilled request; what kept it from going."""
        try:
            self._send(self._state(name, self.engine.hand_over(request)))
        except TransferError as error:
            return error
        except Exception as error:  # of making its state: the channel is as good as before
            reason = f"its state could not be taken: {error!r}"
            self._withdraw(name, reason)
            return TransferError(name, reason)
        return None

    def _give_up(self, name: str, completion: Completion) -> TransferError:
        """What is told of a request that the engine has ended, which only its failures can do here."""
        reason = f"its prefill failed: {completion.error}"
        self._withdraw(name, reason)
        self._forget(completion.request_id)
        return TransferError(name, reason)

    def _withdraw(self, name: str, reason: str) -> None:
        """Tell the peer, if it is there, that nothing of a request will come."""
        with suppress(TransferError):
            self._send(Message(WITHDRAWN, name, {"reason": reason}))

    def _forget(self, request_id: int) -> None:
        """Take a request out of the engine if it is still there."""
        self.engine.abort(request_id)
        del self.names[request_id]

    def _state(self, name: str, handover: Handover) -> Message:
        """The message with the state of a request, where the channel sends it from."""
        tensors = {"record": self.engine.program.record_layout.pack(handover.carry)[0]}
        for owner, buffers in handover.kv.items():
            tensors |= {f"kv.{owner}.{index}": rows for index, rows in enumerate(buffers)}
        staged = {key: tensor.to(self.channel.device) for key, tensor in tensors.items()}
        scores = [asdict(score) for score in handover.scores]
        values = {"first": handover.first, "health": handover.health, "scores": scores}
        return Message(STATE, name, values, staged)

    def _send(self, message: Message) -> None:
        if self._lost is not None:
            raise TransferError(message.request, self._lost.reason)
        try:
            send(self.channel, message, self.patience)
        except TransferError as error:
            self._lost = error
            raise
