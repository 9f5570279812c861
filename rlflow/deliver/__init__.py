"""From candidates to a delivered file: checked (validate/), repaired, measured, chosen, with a receipt, within a time
budget.
"""
