"""Headless Chromium, driven over its DevTools protocol through a pipe: no driver, no web socket, no dependency."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab. Everything the page complains about, and every address it asks for, is kept."""

    def __init__(self, profile: Path, wait: float = 30.0) -> None:
        assert EXECUTABLE, "no Chromium: skip the test"
        self.wait, self.numbers, self.buffer = wait, itertools.count(1), b""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        from_us, self.out = os.pipe()
        self.back, to_us = os.pipe()

        def as_three_and_four() -> None:  # where the browser looks for its pipe
            high = os.dup(from_us), os.dup(to_us)
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [EXECUTABLE, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=as_three_and_four,
            close_fds=False,
        )
        os.close(from_us)
        os.close(to_us)
        self.session = ""
        tab = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=tab["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.out)  # the browser ends with its pipe
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        os.close(self.back)

    # ---- the protocol -----------------------------------------------------------------------------------------------

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def read(self) -> dict[str, Any]:
        until = time.monotonic() + self.wait
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.back], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"Chromium said nothing for {self.wait:g} s"
            piece = os.read(self.back, 1 << 20)
            assert piece, "Chromium ended"
            self.buffer += piece
        line, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(line)
        self.note(message.get("method", ""), message.get("params", {}))
        return message

    def note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert"):
            self.complaints.append(" ".join(str(value.get("value", value)) for value in about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.complaints.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    # ---- what a person does -----------------------------------------------------------------------------------------

    def look(self, width: int, height: int = 900, dark: bool = False) -> None:
        """A window of this width; of a phone's kind where it is narrow."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        assert not self.ask("Page.navigate", url=address).get("errorText")
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """What the expression says once it is true."""
        end = time.monotonic() + self.wait
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"not so within {self.wait:g} s: {script}"
            time.sleep(0.05)
        return value

    def choose_file(self, selector: str, file: Path) -> None:
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        node = self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.ask("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        """Replace what is in a field, as key strokes would."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.ask("Input.insertText", text=text)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}} if whole else {}
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)["data"]
        path.write_bytes(base64.b64decode(data))
