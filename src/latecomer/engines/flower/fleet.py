"""On the client: Flower's Fleet API, by which nodes talk to a SuperLink. The code that a run ships is never asked for.

The one file that takes names which Flower does not promise to keep, so that another version has to be fitted here
alone (flwr 1.41.0; a test looks whether they are still there).
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto, recorddict_from_proto, recorddict_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ... import tensorfile
from ...errors import LinkError, SettingError

BEAT = 60.0  # seconds; a SuperLink takes a node for gone after two of them, in which a killed one can be back
FETCH = 0.02  # seconds before a part is asked for again that is not there yet
RAISED = 2  # Flower's code for a ClientApp that raised
BUSY = (502, 503, 504)  # of HTTP: try again
REASON = 300  # letters of a server's own words that a log has room for


class Away(LinkError):
    """Nobody answers, for now."""


class Over(LinkError):
    """The run that a message belongs to is over."""


class Refused(LinkError):
    """The SuperLink has understood, and does not do it."""

    code = 0  # Flower's own; 0: none


class Strange(LinkError):
    """What answers, does so as no SuperLink should; one that has lost its runs does, too."""


State = RecordDict
"""What a client keeps of a training."""


# messages, as they lie on a disk


@dataclass(frozen=True)
class Letter:
    """A message as it came; only a `Message` once it is opened."""

    run: int  # Flower's own number of the run, another one whenever a server is started again
    name: str  # of the message
    parts: Sequence[str]  # names of what it consists of
    objects: Mapping[str, bytes] = field(default_factory=dict)  # those parts; empty until they are fetched
    ends: int = 0  # how many processes have ended, one after the other, with it unanswered

    def pack(self) -> bytes:
        facts = {"run": self.run, "name": self.name, "parts": list(self.parts), "ends": self.ends}
        return packed(facts, self.objects)

    @staticmethod
    def unpack(body: bytes) -> Letter:
        facts, objects = unpacked(body)
        parts, ends = [str(part) for part in facts["parts"]], int(facts["ends"])
        return Letter(int(facts["run"]), str(facts["name"]), parts, objects, ends)

    def open(self, node: int) -> Message:
        message = inflate_object_from_contents(self.name, dict(self.objects))
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = self.name
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run, node, 1  # whoever replies has one
        return message


@dataclass(frozen=True)
class Parcel:
    """A reply, ready to be sent, as often as it takes."""

    answers: str  # the name of the message
    run: int
    seconds: float
    objects: Mapping[str, bytes]
    head: bytes
    tree: bytes

    @staticmethod
    def of(letter: Letter, reply: Message, seconds: float) -> Parcel:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            tree = get_object_tree(reply).SerializeToString()
            objects = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
            bare = remove_content_from_message(reply) if reply.has_content() else reply
            head = message_to_proto(bare).SerializeToString()
        return Parcel(letter.name, letter.run, seconds, objects, head, tree)

    def pack(self) -> bytes:
        facts = {"answers": self.answers, "run": self.run, "seconds": self.seconds}
        return packed(facts, {"head": self.head, "tree": self.tree, **self.objects})

    @staticmethod
    def unpack(body: bytes) -> Parcel:
        facts, parts = unpacked(body)
        head, tree = parts.pop("head"), parts.pop("tree")
        return Parcel(str(facts["answers"]), int(facts["run"]), float(facts["seconds"]), parts, head, tree)


def refusal(message: Message, error: Exception) -> Message:
    """What a node sends in the place of a reply."""
    return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


def pack_state(state: RecordDict) -> bytes:
    body: bytes = recorddict_to_proto(state).SerializeToString()
    return body


def unpack_state(body: bytes) -> RecordDict:
    return recorddict_from_proto(RecordDictProto.FromString(body))


def packed(facts: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    told = {"facts": json.dumps(facts).encode(), **{f"part/{name}": part for name, part in parts.items()}}
    return tensorfile.pack({name: np.frombuffer(part, np.uint8) for name, part in told.items()})


def unpacked(body: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    found = {name: array.tobytes() for name, array in tensorfile.unpack(body).items()}
    facts: dict[str, Any] = json.loads(found.pop("facts"))
    return facts, {name.removeprefix("part/"): part for name, part in found.items()}


# the SuperLink


class _Version:
    """Tells a SuperLink which Flower this is. Flower's own way would end the process where the answer is no."""

    def __init__(self) -> None:
        self.headers = dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())

    def intercept(self, context: Any, call_next: Any) -> Any:
        add_headers(context.request, self.headers)
        return call_next(context)


class Fleet:
    """A SuperLink, seen from a node. Every call either works or is one sentence."""

    def __init__(
        self, address: str, certificates: Path | None, key: ec.EllipticCurvePrivateKey, insecure: bool
    ) -> None:
        self.address, self.insecure, self.public = address, insecure, public_key_to_bytes(key.public_key())
        try:
            roots = None if certificates is None else certificates.read_bytes()
            self.client = FleetHttpClient.from_server_address(
                address, insecure, roots, interceptors=[_Version(), NodeAuthHttpInterceptor(key, key.public_key())]
            )
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise SettingError(f"--root-certificates {certificates} holds no certificate in PEM.") from error
        except OSError as error:
            raise SettingError(f"--root-certificates {certificates}: {error.strerror or error}.") from error

    def activate(self, before: int | None) -> int:
        """Take this node's place: the one it had before, whoever still believes that it is there."""
        ask = ActivateNodeRequest(public_key=self.public, heartbeat_interval=BEAT)
        if before is not None:
            with suppress(Refused):  # it may not be there any more
                self._call("DeactivateNode", DeactivateNodeRequest(node_id=before))
        try:
            return int(self._call("ActivateNode", ask).node_id)
        except Refused as error:
            raise LinkError(
                f"The SuperLink at {self.address} does not take this key: it is not registered, or a node that has it "
                "is connected already."
            ) from error

    def register(self) -> None:
        """For a SuperLink that lets nodes register themselves."""
        try:
            self._call("RegisterNode", RegisterNodeFleetRequest(public_key=self.public))
        except Refused as error:
            if error.code == ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED:
                raise LinkError(f"The SuperLink at {self.address} wants a registered key; give --key.") from error
            if error.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
                raise

    def deactivate(self, node: int) -> None:
        self._call("DeactivateNode", DeactivateNodeRequest(node_id=node))

    def beat(self, node: int) -> bool:
        """A sign of life; False: the SuperLink does not know this node any more."""
        ask = SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=BEAT)
        return bool(self._call("SendNodeHeartbeat", ask).success)

    def receive(self, node: int) -> Letter | None:
        """The next message, if there is one; nothing of it is fetched yet."""
        found = self._call("PullMessages", PullMessagesRequest(node=Node(node_id=node)))
        if not found.messages_list:
            return None
        tree = found.message_object_trees[0]
        parts = [part.object_id for part in iterate_object_tree(tree)]
        return Letter(int(found.messages_list[0].metadata.run_id), tree.object_id, parts)

    def fetch(self, node: int, letter: Letter) -> Letter:
        """The same, with all that it consists of."""
        pull = make_pull_object_fn_protobuf(lambda ask: self._call("PullObject", ask), Node(node_id=node), letter.run)
        try:
            return replace(letter, objects=pull_objects(list(letter.parts), pull, initial_backoff=FETCH))
        except ObjectPullError as error:
            raise Over(f"A message could not be fetched: {error}") from error

    def confirm(self, node: int, letter: Letter) -> None:
        """The SuperLink need not keep a message any longer."""
        self._call(
            "ConfirmMessageReceived",
            ConfirmMessageReceivedRequest(node=Node(node_id=node), run_id=letter.run, message_object_id=letter.name),
        )

    def send(self, node: int, parcel: Parcel) -> None:
        told = self._call(
            "PushMessages",
            PushMessagesRequest(
                node=Node(node_id=node),
                messages_list=[MessageProto.FromString(parcel.head)],
                message_object_trees=[ObjectTree.FromString(parcel.tree)],
                clientapp_runtime_list=[parcel.seconds],
            ),
        )
        if not told.objects_to_push:
            self._send_rest(node, parcel)
            return
        push = make_push_object_fn_protobuf(
            lambda ask: self._call("PushObject", ask), Node(node_id=node), parcel.run, told.session_id
        )
        try:
            push_object_contents_from_iterable(
                [(name, parcel.objects[name]) for name in set(told.objects_to_push)], push
            )
        except ObjectPushError as error:
            raise Away(f"A reply was not stored: {error}") from error

    def _send_rest(self, node: int, parcel: Parcel) -> None:
        """A reply that a killed process had announced, and whose parts the server may be waiting for.

        It cannot be announced again, but without a session a SuperLink takes the parts that it lacks, and no others.
        """
        for name, part in parcel.objects.items():
            self._call(
                "PushObject",
                PushObjectRequest(node=Node(node_id=node), run_id=parcel.run, object_id=name, object_content=part),
            )

    def close(self) -> None:
        self.client.close()

    def _call(self, name: str, request: Any) -> Any:
        try:
            return getattr(self.client, name)(request)
        except httpx.HTTPStatusError as error:
            raise self._refused(error.response) from error
        except httpx.TransportError as error:
            raise self._unheard(str(error) or type(error).__name__) from error
        except ValueError as error:  # what came was no protobuf
            raise LinkError(f"What answers at {self.address} is no SuperLink: {error}.") from error

    def _refused(self, response: httpx.Response) -> LinkError:
        told = FlowerError.from_json(response.text)
        if response.status_code in BUSY:
            return Away(f"The SuperLink at {self.address} is busy ({response.status_code}).")
        if told is not None and told.code == ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
            return Over(f"The run is over: {told.message[:REASON]}")
        if response.status_code == httpx.codes.UNAUTHORIZED:
            return Refused(f"The SuperLink at {self.address} does not accept this key, or this machine's clock.")
        if told is None:
            return Strange(f"What answers at {self.address} is no SuperLink (HTTP {response.status_code}).")
        error = Refused(f"The SuperLink at {self.address} refuses: {told.message[:REASON]} (code {told.code}).")
        error.code = int(told.code)
        return error

    def _unheard(self, why: str) -> LinkError:
        words, why = why.lower(), why.rstrip(".")
        if "certificate" in words:
            return LinkError(f"The certificate of the SuperLink at {self.address} does not match: {why}.")
        if "ssl" in words or "tls" in words:
            return LinkError(f"What answers at {self.address} does not speak TLS; --insecure would do without: {why}.")
        hint = "" if not self.insecure else ", or it speaks TLS and --insecure must go"
        return Away(f"There is no SuperLink at {self.address}{hint}: {why}.")
