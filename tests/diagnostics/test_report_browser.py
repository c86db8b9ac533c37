"""The page of a report in a real browser: it fits, says nothing on the console and asks for nothing else."""

import base64
import json
import re
import shutil
import subprocess
import urllib.request

import pytest
import torch

import latentcal as lc
from latentcal.flows import LinearGaussianFlow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = {"desktop": (1280, 800), "tablet": (700, 900), "phone": (360, 740)}
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"
)


class Browser:
    """Headless Chromium, asked over chromedriver's plain HTTP interface."""

    def __init__(self, profile):
        self.process = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
        started = (re.search(r"successfully on port (\d+)", line) for line in self.process.stdout)
        port = next(filter(None, started))[1]
        self.address = f"http://127.0.0.1:{port}/session"
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        try:
            answer = self._post("", {"capabilities": {"alwaysMatch": wanted}})
        except OSError:
            self._stop()
            raise
        self.address += "/" + answer["sessionId"]

    def _post(self, path, body):
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def command(self, name, **parameters):
        """One command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, path, size, scheme="light"):
        """Open a page on a screen of that size (width, height), and forget what was logged before."""
        width, height = size
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", features=[feature])
        for kind in ("browser", "performance"):
            self.log(kind)
        self.page = path.as_uri()
        self._post("/url", {"url": self.page})

    def log(self, kind):
        """What was logged since the last time: ``"browser"`` for the console, ``"performance"``."""
        return self._post("/se/log", {"type": kind})

    def requests(self):
        """Addresses that the page asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [request["request"]["url"] for request in sent if request["documentURL"] == self.page]

    def run(self, script):
        """The value of a script in the page."""
        return self._post("/execute/sync", {"script": f"return {script}", "args": []})

    def pdf(self):
        """The page on paper."""
        return base64.b64decode(self.command("Page.printToPDF", printBackground=True)["data"])

    def close(self):
        try:
            urllib.request.urlopen(urllib.request.Request(self.address, method="DELETE"), timeout=20).close()
        finally:
            self._stop()

    def _stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a recalibrated model with long and hostile names."""
    generator = torch.Generator().manual_seed(0)
    flow = LinearGaussianFlow(torch.eye(3, 2), torch.ones(3), torch.eye(3))
    x = torch.randn(600, 2, generator=generator)
    y = flow.decode(1.3 * torch.randn(600, 3, generator=generator) * torch.exp(0.3 * x[:, :1]), x)
    report = lc.diagnose(
        lc.recalibrate(flow, x[:300], y[:300]),
        x[300:],
        y[300:],
        groups=["north" if value > 0 else "w" * 80 for value in x[300:, 1].tolist()],
        feature_names=["income_" * 12, "age"],
        output_names=["rent", "<script>document.title = 'broken'</script>", "a name with spaces " * 8],
        samples=50,
        permutations=399,
    )
    return report.to_html(tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_without_errors_and_without_other_requests(width, scheme, browser, page):
    browser.open(page, WIDTHS[width], scheme)
    assert browser.requests() == [page.as_uri()]
    assert browser.log("browser") == []
    root = "document.documentElement"
    assert browser.run("window.innerWidth") == WIDTHS[width][0]
    assert browser.run(f"{root}.scrollWidth <= {root}.clientWidth")
    assert browser.run("document.title") == "Calibration report"
    charts = "document.querySelectorAll('svg')"
    assert browser.run(f"{charts}.length") == 16
    assert browser.run(f"Array.from({charts}).every(svg => svg.getBoundingClientRect().width > 250)")


def test_before_and_after_stand_side_by_side_and_on_a_phone_below_each_other(browser, page):
    def corner(i, side):
        return browser.run(f"document.querySelectorAll('figure')[{i}].getBoundingClientRect().{side}")

    browser.open(page, WIDTHS["desktop"])
    assert corner(0, "top") == corner(1, "top")
    assert corner(0, "right") <= corner(1, "left")
    browser.open(page, WIDTHS["phone"])
    assert corner(0, "bottom") <= corner(1, "top")


def test_text_has_enough_contrast_in_both_schemes(browser, page):
    colours = """(() => {
        const seen = new Set();
        const texts = 'p, h1, h2, h3, td, th, dd, dt, small, figcaption, caption, svg text, strong, b';
        for (const e of document.querySelectorAll(texts))
            seen.add(getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color']);
        const style = getComputedStyle(document.documentElement);
        return [[...seen], ['--back', '--card'].map(name => style.getPropertyValue(name).trim())];
    })()"""

    def luminance(rgb):
        parts = [c / 255 for c in rgb]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for scheme in ("light", "dark"):
        browser.open(page, WIDTHS["desktop"], scheme)
        texts, backs = browser.run(colours)
        assert len(texts) >= 4
        for text in texts:
            for back in backs:
                bright = luminance([int(part) for part in re.findall(r"\d+", text)[:3]])
                dark = luminance(bytes.fromhex(back[1:]))
                assert (max(bright, dark) + 0.05) / (min(bright, dark) + 0.05) >= 4.5  # WCAG AA


def test_a_page_that_is_too_wide_or_asks_for_more_is_noticed(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text('<div style="width: 2000px">x</div><img src="missing.png"><script>nothing()</script>')
    browser.open(bad, WIDTHS["phone"])
    assert browser.run("document.documentElement.scrollWidth") > WIDTHS["phone"][0]
    assert any("missing.png" in address for address in browser.requests())
    assert any("nothing is not defined" in entry["message"] for entry in browser.log("browser"))


def test_on_paper_the_page_is_light_and_side_by_side(browser, page):
    browser.open(page, (700, 900), "dark")
    back = "getComputedStyle(document.body).backgroundColor"
    assert browser.run(back) == "rgb(18, 22, 27)"  # on the screen
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.command("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert browser.run(back) == "rgb(255, 255, 255)"
    tops = (
        "Array.from(document.querySelectorAll('figure')).slice(0, 2).map(f => f.getBoundingClientRect().top)"
    )
    first, second = browser.run(tops)
    assert first == second
    assert browser.pdf().startswith(b"%PDF")
    browser.command("Emulation.setEmulatedMedia", media="")
