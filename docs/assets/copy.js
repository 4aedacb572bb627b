// The copy button of a block that shows a command with its output takes the commands alone, without their prompts.
// The theme copies the attribute data-copy where there is one.
(function () {
  const PROMPT = "$ ";

  function commandsIn(text) {
    const lines = text.split("\n").filter((line) => line.startsWith(PROMPT));
    return lines.map((line) => line.slice(PROMPT.length)).join("\n");
  }

  function mark() {
    for (const block of document.querySelectorAll("pre > code")) {
      const commands = commandsIn(block.textContent);
      if (commands) {
        block.setAttribute("data-copy", commands);
      }
    }
  }

  if (document.readyState === "loading") {
    document.addEventListener("DOMContentLoaded", mark);
  } else {
    mark();
  }
})();
