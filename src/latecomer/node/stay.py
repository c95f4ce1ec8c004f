"""The loop of a node: take a message, answer it, write down, send. A killed process goes on where it was."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

from ..engines.flower.fleet import BEAT, Fleet, Letter, Over, Parcel, Refused, State, Strange, refusal
from ..engines.flower.keys import read_key
from ..engines.flower.participant import TRAINING, Participant, for_server, training_of
from ..errors import LatecomerError, LinkError, StepError
from .desk import Desk
from .host import Host, wake
from .settings import Stay

LOG = logging.getLogger(__name__)
ENDS = 5  # processes that may end at one message: what takes all memory, or all time, must not for ever
REFUSALS = 20  # one after the other, by a SuperLink that is there; then a message in hand is let go
SHORTEST, LONGEST, SLOWER = 0.1, 3.0, 1.3  # seconds between two looks for a message, and how the pause grows


class Node:
    """A place at a SuperLink, and a desk."""

    def __init__(self, settings: Stay) -> None:
        settings.check()
        self.host = Host(settings)
        self.participant = Participant(self.host)
        self.desk = Desk(settings.desk)
        try:
            self.registers = not settings.key
            key = read_key(Path(settings.key) if settings.key else self.desk.own_key())
            roots = Path(settings.root_certificates) if settings.root_certificates else None
            self.fleet = Fleet(settings.superlink, roots, key, settings.insecure)
        except LatecomerError:
            self.desk.close()
            raise
        self.node = 0
        self.stopped, self.forgotten = threading.Event(), threading.Event()

    def run(self) -> None:
        """Until `stop`. What is wrong at the first contact is raised; what goes wrong later is waited for."""
        try:
            wake()
            self._arrive()
            threading.Thread(target=self._beat, daemon=True).start()
            try:
                self._stay()
            finally:
                self._leave()
        finally:
            self.fleet.close()
            self.desk.close()

    def stop(self) -> None:
        """When the message in hand is answered."""
        self.stopped.set()

    def _arrive(self) -> None:
        if self.registers:
            self.fleet.register()
        self.node = self.fleet.activate(self.desk.node)
        self.desk.take_place(self.node)
        self.forgotten.clear()
        LOG.info("Node %d is ready at %s", self.node, self.fleet.address)

    def _leave(self) -> None:
        try:
            self.fleet.deactivate(self.node)
            LOG.info("Node %d has left", self.node)
        except LinkError as error:
            LOG.warning("Node %d has left without a word: %s", self.node, error)

    def _beat(self) -> None:
        while not self.stopped.wait(BEAT / 3):
            try:
                if not self.fleet.beat(self.node):
                    self.forgotten.set()
            except Refused as error:  # a SuperLink that was started afresh knows nobody
                LOG.warning("No sign of life is accepted: %s", error)
                self.forgotten.set()
            except LinkError as error:
                LOG.warning("No sign of life could be given: %s", error)

    def _stay(self) -> None:
        letter, pause, away, refusals = self.desk.letter(), SHORTEST, False, 0
        if letter is not None:
            LOG.info("A message lies here from before; it is answered first")
            letter = replace(letter, ends=letter.ends + 1)
            self.desk.lay(letter)
        while not self.stopped.is_set():
            try:
                if self.forgotten.is_set():
                    self._arrive()
                letter = letter or self.fleet.receive(self.node)
                if letter is None:
                    self.stopped.wait(pause)
                    pause = min(pause * SLOWER, LONGEST)
                else:
                    letter = self._take(letter)
                    self.fleet.send(self.node, self._answer(letter))
                    self.desk.answered()
                    letter, pause = None, SHORTEST
                if away:
                    LOG.info("The SuperLink is there again")
                away, refusals = False, 0
            except Over as error:
                LOG.info("A message is not answered: %s", error)
                self.desk.answered()
                letter = None
            except LinkError as error:
                if not away:
                    LOG.warning("%s It is tried again.", error)
                away = True
                refusals += isinstance(error, Refused | Strange)
                if letter is not None and refusals >= REFUSALS:  # it may be of a run that nobody knows any more
                    LOG.warning("A message is not answered: the SuperLink has refused it %d times", refusals)
                    self.desk.answered()
                    letter, refusals = None, 0
                self.stopped.wait(LONGEST)

    def _take(self, letter: Letter) -> Letter:
        """A message, on the disk before the SuperLink forgets it."""
        if not letter.objects:
            self.desk.lay(letter)
            letter = self.fleet.fetch(self.node, letter)
            self.desk.lay(letter)
            self.fleet.confirm(self.node, letter)
        return letter

    def _answer(self, letter: Letter) -> Parcel:
        """The reply, on the disk with what it has changed before anybody sees it."""
        began = time.monotonic()
        try:
            message = letter.open(self.node)
        except Exception as error:
            raise Over(f"it cannot be read ({type(error).__name__}: {error}).") from error
        name, state, told = "", State(), message.metadata.message_type
        try:
            name = training_of(message)
            state, before = self.desk.training(name)
            if before is not None and before.answers == letter.name:
                return before
            if letter.ends >= ENDS:
                raise StepError(f"This client has been stopped {letter.ends} times at this message, and lets it be.")
            reply = self.participant.answer(message, state)
            LOG.info("Answered %s of %s in %.2f s", told, name, time.monotonic() - began)
        except LatecomerError as error:
            LOG.warning("Refused %s of %s: %s", told, name or "nobody", error, exc_info=isinstance(error, StepError))
            reply = refusal(message, for_server(error))
        except Exception:  # what nobody foresaw may have numbers in it that are the client's own
            LOG.exception("Failed at %s of %s", told, name)
            reply = refusal(message, StepError("This client failed; its own log says why."))
        parcel = Parcel.of(letter, reply, time.monotonic() - began)
        if TRAINING in state:
            self.desk.keep(name, state, parcel)
        return parcel
