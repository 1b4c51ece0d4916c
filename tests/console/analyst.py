"""An analyst, who uses the console by what is written on it."""

import re
from dataclasses import dataclass, field
from typing import Any, Self

REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`);
});
"""
ANSWERED = "Failed to load resource: the server responded with"  # an error that the API stated; the page shows it

Words = str | re.Pattern[str]


@dataclass
class Analyst:
    """A page of a browser, and what it did that it should not."""

    page: Any
    url: str
    elsewhere: list[str] = field(default_factory=list)  # requests to other hosts
    errors: list[str] = field(default_factory=list)  # on the browser's console
    expected: list[str] = field(default_factory=lambda: [ANSWERED])  # an error that contains one of these is no fault

    @classmethod
    def at(cls, context: Any, url: str) -> Self:
        context.add_init_script(REPORT_VIOLATIONS)
        analyst = cls(context.new_page(), url)
        page = analyst.page
        page.set_default_timeout(60_000)  # of a machine with more to do
        page.on("request", lambda request: analyst.asked(request.url))
        page.on("console", lambda message: message.type in {"error", "warning"} and analyst.errors.append(message.text))
        page.on("pageerror", lambda error: analyst.errors.append(f"uncaught: {error}"))
        return analyst

    def asked(self, url: str) -> None:
        if not url.startswith((self.url + "/", "blob:")):
            self.elsewhere.append(url)

    def complaints(self) -> list[str]:
        return self.elsewhere + [e for e in self.errors if not any(known in e for known in self.expected)]

    def go(self, place: str = "") -> None:
        """To a view, by its address, as from a bookmark."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/console{place}")
        self.page.wait_for_selector(".view:not([aria-busy]) h1")

    def heading(self) -> str:
        text: str = self.page.locator("h1").inner_text()
        return text

    def text(self, place: str = "main") -> str:
        text: str = self.page.locator(place).first.inner_text()
        return text

    def sees(self, words: Words) -> None:
        self.page.get_by_text(words).first.wait_for()

    def sees_no_more(self, words: Words) -> None:
        self.page.get_by_text(words).first.wait_for(state="detached")

    def presses(self, name: Words, role: str = "button") -> None:
        self.page.get_by_role(role, name=name).first.click()

    def field(self, label: str) -> Any:
        return self.page.get_by_label(label, exact=True)

    def fills(self, label: str, text: str) -> None:
        self.field(label).fill(text)

    def chooses(self, label: str, value: str) -> None:
        self.field(label).select_option(value)

    def chooses_file(
        self, name: str, content: bytes, label: str = "Choose a file, or drop it anywhere on this page"
    ) -> None:
        self.field(label).set_input_files({"name": name, "mimeType": "application/octet-stream", "buffer": content})

    def answers(self, name: str) -> None:
        """Presses a button of the open dialog."""
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name=name).click()
        dialog.wait_for(state="detached")

    def opens(self, name: str) -> None:
        """Unfolds a part of the page."""
        self.page.locator("summary", has_text=name).first.click()

    def alert(self) -> str:
        box = self.page.locator("#alerts .alert")
        box.wait_for()
        text: str = box.inner_text()
        return text

    def understood(self) -> dict[str, str]:
        """What the page says it read, by name."""
        tiles = self.page.locator(".understood dl > div")
        tiles.first.wait_for()
        return dict(tile.inner_text().split("\n", 1) for tile in tiles.all())

    def tabs_to(self, name: str, most: int = 80) -> None:
        """Presses Tab until the control with this name has the focus."""
        for _ in range(most):
            self.page.keyboard.press("Tab")
            if self.focused() == name:
                return
        raise AssertionError(f"no way to {name!r} by Tab")

    def enters(self, name: str) -> None:
        """Goes to a control by Tab and presses Enter."""
        self.tabs_to(name)
        self.page.keyboard.press("Enter")

    def focused(self) -> str:
        """The label or the text of what has the focus."""
        found: str = self.page.evaluate(
            """() => {
                const e = document.activeElement;
                return (e.getAttribute("aria-label") ?? e.labels?.[0]?.textContent ?? e.textContent ?? "").trim();
            }"""
        )
        return found
