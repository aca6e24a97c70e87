"""A headless Chromium driven over the DevTools protocol through a pair of pipes; nothing but the standard library."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

FLAGS = ["--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--disable-extensions",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
         "--force-color-profile=srgb", "--font-render-hinting=none"]


class Failure(Exception):
    """The browser did not do what was asked of it."""


class Chromium:
    """One browser process. Commands wait for their answer; events are kept per page."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="cedar-chromium-")
        to_read, self.to = os.pipe()
        self.out, out_write = os.pipe()
        # 3 and 4 are the browser's ends of the pipes; copies far away keep them from being overwritten on the way
        to_read, out_write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_read, out_write))
        flags = FLAGS + (["--no-sandbox"] if os.geteuid() == 0 else []) + ["--user-data-dir=" + self.profile]

        def ends():
            os.dup2(to_read, 3)
            os.dup2(out_write, 4)

        self.process = subprocess.Popen([program] + flags + ["about:blank"], preexec_fn=ends, pass_fds=(3, 4),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(out_write)
        self.number, self.rest, self.events = 0, b"", {}

    def close(self):
        try:
            self.command("Browser.close")
        except (Failure, OSError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, until):
        while b"\0" not in self.rest:
            if not select.select([self.out], [], [], max(0, until - time.time()))[0]:
                raise Failure("chromium does not answer")
            part = os.read(self.out, 1 << 20)
            if not part:
                raise Failure("chromium ended")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def command(self, method, session=None, seconds=60, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        until = time.time() + seconds
        while True:
            reply = self.receive(until)
            if reply.get("id") == self.number:
                if "error" in reply:
                    raise Failure("%s: %s" % (method, reply["error"].get("message")))
                return reply["result"]
            if "method" in reply:
                self.events.setdefault(reply.get("sessionId"), []).append(reply)

    def wait(self, session, name, seconds=60):
        until = time.time() + seconds
        while not any(e["method"] == name for e in self.events.get(session, [])):
            event = self.receive(until)
            if "method" in event:
                self.events.setdefault(event.get("sessionId"), []).append(event)


class Page:
    """One tab with a file open in it."""

    def __init__(self, browser, path, width=1200, height=900, dark=False, phone=False):
        self.browser, self.url = browser, "file://" + os.path.abspath(path)
        self.target = browser.command("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.command("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(domain + ".enable")
        self.size(width, height, phone)
        self.media(dark)
        self.do("Page.navigate", url=self.url)
        browser.wait(self.session, "Page.loadEventFired")

    def do(self, method, **params):
        return self.browser.command(method, self.session, **params)

    def events(self):
        self.evaluate("new Promise((done) => setTimeout(done, 50))")     # what is still on its way
        return self.browser.events.get(self.session, [])

    def size(self, width, height, phone=False):
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def media(self, dark, kind=""):
        self.do("Emulation.setEmulatedMedia", media=kind, features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def evaluate(self, expression):
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise Failure(details.get("exception", {}).get("description") or details.get("text"))
        return answer["result"].get("value")

    def key(self, key, code, text=""):
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key if len(key) > 1 else "Space",
                    windowsVirtualKeyCode=code, **more)

    def screenshot(self, path, limit=6000):
        box = self.do("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": box["width"], "height": min(limit, box["height"]), "scale": 1}
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.do("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]))

    def pdf(self, path):
        data = base64.b64decode(self.do("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
        with open(path, "wb") as f:
            f.write(data)
        return data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") + data.count(b"/Type/Page\n")

    def close(self):
        self.browser.command("Target.closeTarget", targetId=self.target)
        self.browser.events.pop(self.session, None)
