"""For Sphinx: "notebook 5" leads to the notebook, `numba_kernels/errors.py` to that file."""

import re
from pathlib import Path

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

FILE = re.compile(r"([\w/]+\.py)(?::(\d+))?")
ONE = re.compile(r"\b[Nn]otebook (\d{1,2})\b")
SEVERAL = re.compile(r"\b[Nn]otebooks \d{1,2}(?:(?:, | and | to | or )\d{1,2})+")
NUMBER = re.compile(r"\d{1,2}")
KEPT = (nodes.reference, nodes.title, nodes.literal, nodes.literal_block, nodes.FixedTextElement,
        nodes.math, nodes.math_block, nodes.raw, nodes.comment)  # fmt: skip


class Linking(SphinxPostTransform):
    """Adds links to pages before they are written. All files lie in the folder of conf.py."""

    default_priority = 800  # after MyST-NB has put outputs into the page

    def run(self, **_: object) -> None:
        root, here = Path(self.app.srcdir), self.env.docname
        self.up = "../" * here.count("/")
        self.notebooks = {
            int(file.name[:2]): f"notebooks/{file.stem}"
            for file in (root / "notebooks").glob("[0-9][0-9]_*.ipynb")
        }
        self.files = files_below(root / "_extra/source")
        for node in [*self.document.findall(nodes.literal)]:
            found = FILE.fullmatch(node.astext())
            address = self._address(*found.groups()) if found else None
            if address and not _inside(node, (nodes.reference, nodes.title)):
                self._replace(node, [self._link(node.deepcopy(), address)])
        for node in [*self.document.findall(nodes.Text)]:
            if not _inside(node, KEPT):
                self._link_notebooks(node, here)

    def _address(self, path: str, line: str | None) -> str | None:
        """The address of a file, which may be named without its first folders."""
        known = self.files.get(path, [])
        part = f"#L{line}" if line else ""
        return f"{self.up}source/{known[0]}.html{part}" if len(known) == 1 else None

    def _link(self, content: nodes.Node, address: str) -> nodes.reference:
        return nodes.reference("", "", content, internal=True, refuri=address)

    def _replace(self, node: nodes.Node, new: list[nodes.Node]) -> None:
        node.parent.replace(node, new)

    def _link_notebooks(self, node: nodes.Text, here: str) -> None:
        text, made, at = node.astext(), [], 0
        spans = [(one.span(), int(one[1])) for one in ONE.finditer(text)]
        for several in SEVERAL.finditer(text):
            spans += [
                ((several.start() + one.start(), several.start() + one.end()), int(one[0]))
                for one in NUMBER.finditer(several[0])
            ]
        for (first, last), number in sorted(spans):
            page = self.notebooks.get(number)
            if page is None or page == here:
                continue
            address = self.app.builder.get_relative_uri(here, page)
            made += [nodes.Text(text[at:first]), self._link(nodes.Text(text[first:last]), address)]
            at = last
        if made:
            self._replace(node, [*made, nodes.Text(text[at:])])


def _inside(node: nodes.Node, kinds: tuple) -> bool:
    while node := node.parent:
        if isinstance(node, kinds):
            return True
    return False


def files_below(folder: Path) -> dict[str, list[str]]:
    """Every end of a path, such as "team/team.py": the files with that end."""
    known: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.py.html")):
        path = str(file.relative_to(folder)).removesuffix(".html")
        parts = path.split("/")
        for i in range(len(parts)):
            known.setdefault("/".join(parts[i:]), []).append(path)
    return known


def setup(app) -> dict:
    app.add_post_transform(Linking)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
