"""`dpmerge account`: what given runs, a selection among them and a combination of them cost."""

from dpmerge.account.figures import Account, account
from dpmerge.account.spec import Spec

__all__ = ["Account", "Spec", "account"]
