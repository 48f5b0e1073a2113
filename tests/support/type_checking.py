"""Types are checked while tests run: of functions and methods, once each.

`--jaxtyping-packages=headwise,type_checking.checked` asks for it. A function inside a
function would be made, and its annotations read, at every call of the outer one, more slowly every
time: such functions are left as they are.
"""

from collections.abc import Callable
from typing import Any

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its types checked at every call, unless it is inside another one."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
