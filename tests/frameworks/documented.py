"""The snippets of docs/integrations.md."""

from tests.documents import INTEGRATIONS, blocks


def snippets():
    return blocks(INTEGRATIONS, "python")


def snippet(word):
    """The names that a snippet with this word makes, behind the page's first one."""
    (code,) = [code for code in snippets() if word in code]
    return run(snippets()[0], code)


def run(*codes):
    namespace: dict = {}
    for code in codes:
        exec(compile(code, INTEGRATIONS.name, "exec"), namespace)
    return namespace
