"""Differences between the site's pages and docs/: the start page is the README, and links to sources, which the site
does not contain, become plain text.
"""
import pathlib
import posixpath
import re
import shutil

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
API = ROOT / "build" / "docs" / "html"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    text = (ROOT / "README.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    api = "`./dev docs` makes the C++ reference."
    if API.exists():
        api = '<a href="../api/index.html">The C++ reference</a> has every type and function of the installed headers.'
    files.append(File.generated(config, "reference/cpp.md", content=f"# C++\n{api}\n"))
    return files


def on_post_build(config):
    if API.exists():
        shutil.copytree(API, pathlib.Path(config["site_dir"]) / "api", dirs_exist_ok=True)


def blocks_apart(markdown):
    """On GitHub a list or a table may follow a paragraph's line, and lists are nested by two spaces. Python-Markdown
    needs an empty line, and four spaces."""
    lines, before, fenced = [], "", False
    for line in markdown.split("\n"):
        fenced ^= line.startswith("```")
        starts = re.match(r"[-|] ?|\d+\. ", line) and not fenced
        if starts and re.match(r"[^\s|#>-]", before) and not re.match(r"\d+\. ", before):
            lines.append("")
        lines.append(re.sub(r"^  - ", "    - ", line) if not fenced else line)
        before = line
    return "\n".join(lines)


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.dirname(page.file.src_uri)

    def link(found):
        target = found[2]
        if re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if files.get_file_from_path(path):
            return found[0]
        if files.get_file_from_path(f"{path}/README.md"):  # a folder of pages
            return f"[{found[1]}]({target.rstrip('/')}/README.md{found[3] or ''})"
        outside = path.startswith("../") or page.file.src_uri == "index.md"
        exists = (ROOT / "docs" / path).exists() or page.file.src_uri == "index.md" and (ROOT / path).exists()
        return found[1] if outside and exists else found[0]

    markdown = blocks_apart(markdown)
    # Code contains no links.
    parts = re.split(r"(^```.*?^```|`[^`\n]+`(?!\]))", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)
