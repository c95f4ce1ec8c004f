"""Chromium without a window, driven by WebDriver: plain HTTP requests to chromedriver."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # every other origin is cut off
]
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40}  # as the protocol numbers them
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name that the standard gives to references


def missing() -> str:
    """Which programs are not installed here."""
    return ", ".join(name for name in ("chromium", "chromedriver") if shutil.which(name) is None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(ready: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """What `ready` gives as soon as it gives something."""
    end = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.05)
    return found


class Browser:
    """One window, with a profile of its own; what is downloaded lies in `folder/downloads`."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.downloads = folder / "downloads"
        port = free_port()
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        try:
            until(self._listens, "chromedriver's start")
            options = {
                "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}", *flags],
                "prefs": {"download.default_directory": str(self.downloads)},
            }
            logs = {"browser": "WARNING", "performance": "ALL"}
            wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
            self.base += "/session/" + self._ask("/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Ends the browser and its driver."""
        try:
            self._ask("", method="DELETE")
        finally:
            self._stop()

    def open(self, url: str) -> None:
        """Goes to a page and waits until it is loaded."""
        self._ask("/url", {"url": url})

    def script(self, text: str) -> Any:
        """What a function with this body returns in the page."""
        return self._ask("/execute/sync", {"script": text, "args": []})

    def text(self, css: str) -> str:
        """What a person reads in an element."""
        return str(self.script(f"return document.querySelector({css!r}).innerText"))

    def write(self, css: str, text: str) -> None:
        """Keys for an input; paths for one that takes files."""
        self._ask(f"/element/{self._find(css)}/value", {"text": text})

    def click(self, css: str) -> None:
        """As a mouse does."""
        self._ask(f"/element/{self._find(css)}/click", {})

    def complaints(self) -> list[str]:
        """What the browser wrote to its console since it was asked last: errors and violations of the policy."""
        return [line["message"] for line in self._ask("/se/log", {"type": "browser"})]

    def requests(self) -> list[tuple[str, str, str]]:
        """All that pages have sent since they were asked last, as the browser says itself: method, address and body."""
        events = [json.loads(line["message"])["message"] for line in self._ask("/se/log", {"type": "performance"})]
        sent = [event["params"]["request"] for event in events if event["method"] == "Network.requestWillBeSent"]
        lines = [(one["method"], one["url"], one.get("postData", "")) for one in sent]
        return [line for line in lines if not line[1].startswith(("chrome:", "data:"))]  # its own empty page

    def drop(self, css: str, *paths: Path) -> None:
        """Files or folders, dragged onto an element."""
        place = self.script(
            f"const found = document.querySelector({css!r}); found.scrollIntoView();"
            "const { x, y } = found.getBoundingClientRect(); return { x: x + 9, y: y + 9 };"
        )
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            given = {"type": kind, **place, "data": data}
            self._ask("/goog/cdp/execute", {"cmd": "Input.dispatchDragEvent", "params": given})

    def point(self, x: float, y: float) -> None:
        """Moves the mouse over a place of the window, by a place beside it."""
        for at in (x - 40, x):
            given = {"type": "mouseMoved", "x": at, "y": y}
            self._ask("/goog/cdp/execute", {"cmd": "Input.dispatchMouseEvent", "params": given})

    def press(self, key: str) -> None:
        """A key, for whatever has the focus."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" else {}  # else it activates nothing
            given = {"type": kind, "key": key, "windowsVirtualKeyCode": KEYS[key], **text}
            self._ask("/goog/cdp/execute", {"cmd": "Input.dispatchKeyEvent", "params": given})

    def prefer(self, scheme: str) -> None:
        """What a person's system says it likes: light or dark."""
        given = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._ask("/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": given})

    def block(self, *patterns: str) -> None:
        """From now on these addresses, and no others, cannot be reached."""
        for name, given in (("Network.enable", {}), ("Network.setBlockedURLs", {"urls": patterns})):
            self._ask("/goog/cdp/execute", {"cmd": name, "params": given})

    def picture(self, path: Path, width: int) -> None:
        """A screenshot of the whole page."""
        height = int(self.script("return document.documentElement.scrollHeight"))
        shot = self._ask(
            "/goog/cdp/execute",
            {
                "cmd": "Page.captureScreenshot",
                "params": {
                    "captureBeyondViewport": True,
                    "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
                },
            },
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _find(self, css: str) -> str:
        return str(self._ask("/element", {"using": "css selector", "value": css})[ELEMENT])

    def _ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {json.load(error)['value']['message']}") from error

    def _listens(self) -> bool:
        try:
            with urllib.request.urlopen(self.base + "/status", timeout=5) as answer:
                return bool(json.load(answer)["value"]["ready"])
        except OSError:
            return False

    def _stop(self) -> None:
        self.driver.terminate()
        self.driver.wait(30)
