"""A browser for the tests of pages: chromium without a window, offline."""

import os
import shutil

import pytest

FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-background-networking --disable-component-update
--disable-sync --no-first-run"""
CONTRASTS = r"""
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data;
};
const light = (colour) => {
  const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = [...rgba(colour)].map((part) => linear(part / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (node) => {
  while (node.parentElement && rgba(getComputedStyle(node).backgroundColor)[3] === 0) node = node.parentElement;
  return getComputedStyle(node).backgroundColor;
};
const left = "script, style, noscript, figure svg, option, :disabled";
const found = [];
for (const node of document.querySelectorAll("body *")) {
  const text = [...node.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data).join("").trim();
  if (!text || !node.getClientRects().length || node.closest(left)) continue;
  const style = getComputedStyle(node);
  const [a, b] = [light(node.closest("svg") ? style.fill : style.color), light(ground(node))].sort((p, q) => q - p);
  found.push([text.slice(0, 40), (a + 0.05) / (b + 0.05)]);
}
return found;
"""


def browser(profile):
    """A driver, and its end; the test is skipped where there is no browser, and fails there in CI."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        missing = "needs chromium and chromedriver (Debian: chromium, chromium-driver)"
        pytest.fail(missing) if os.environ.get("ERGODRIFT_CI") else pytest.skip(missing)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in FLAGS.split():
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    yield driver
    driver.quit()


class Page:
    """An open page."""

    def __init__(self, driver):
        self.driver = driver

    @classmethod
    def opened(cls, driver, address):
        """The page at an address, for a test, and its end: nothing severe was said on the way."""
        page = cls(driver)
        page.width(1200)
        page.scheme("light")
        driver.get(address)
        yield page
        assert not [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]

    def script(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def count(self, selector):
        return len(self.driver.find_elements("css selector", selector))

    def press(self, selector, *keys):
        self.script("arguments[0].focus()", self.find(selector))
        self.driver.switch_to.active_element.send_keys(*keys)

    def width(self, pixels):
        size = {"width": pixels, "height": 800, "deviceScaleFactor": 1, "mobile": pixels < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def scheme(self, name):
        """Light or dark; without motion, so that colours are there at once."""
        wanted = {"prefers-color-scheme": name, "prefers-reduced-motion": "reduce"}
        features = [{"name": feature, "value": value} for feature, value in wanted.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
