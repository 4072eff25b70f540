"""axe-core, which finds barriers for people with disabilities, in the page that a browser shows."""

from tests.system.browser import Browser
from tests.torchserve_process import ROOT

SOURCE = ROOT / "build" / "axe" / "axe_playwright_python" / "axe.min.js"
RUN = """
const done = arguments[arguments.length - 1];
const told = ({id, nodes}) => nodes.map(({target, failureSummary}) => `${id}: ${target.join(" ")}: ${failureSummary}`);
const tell = ({violations}) => done(violations.flatMap(told));
axe.run({exclude: arguments[0]}).then(tell, (error) => done([String(error)]));
"""


def barriers(page: Browser, *exclude: str) -> list[str]:
    """Return what breaks a rule of axe-core, best practices included; not inside of the elements of `exclude`."""
    assert SOURCE.is_file(), "axe-core is missing: `make test-system` fetches it"
    page.run(f"if (!window.axe) {{ {SOURCE.read_text()} }}")
    found: list[str] = page.driver.execute_async_script(RUN, exclude)
    return found
