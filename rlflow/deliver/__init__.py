"""From candidates to a delivered file: checked (validate/), repaired, measured, chosen, with a receipt, within a time
budget.

validate/ lies in here, since to check is the first half of delivering: repair, receipts and the choice ask it, and
besides them the command `validate`.

Delivered is the candidate (a search's, the controller's, a control's) with the lowest estimate among those that are
equal and *measured* to be faster; if none is, mostly the original (choice.py). The report says who came to it, and when
a control beats the controller. Why `optimise` searches, and in which order, stands in anytime.py.
"""
