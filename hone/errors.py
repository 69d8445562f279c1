"""The one exception for a mistake the user can fix: printed as a single message, without a traceback."""


class UserError(Exception):
    """Names the key, row or file at fault, what was expected, and what to do."""
