"""From candidates to a delivered file: checked (validate/), repaired, measured, chosen, with a receipt, within a time
budget.

validate/ lies in here, since to check is the first half of delivering: repair, receipts and the choice ask it, and
besides them the command `validate`.

Delivered is the candidate (controller, greedy, random) with the lowest estimate among those that are equal and
*measured* to be faster; if none is, among those not measured to be slower; else the original. The report says who came
to it, and when a control beats the controller. Why `optimise` searches, and in which order, stands in anytime.py.
"""
