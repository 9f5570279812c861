"""Pages about one or several finished runs, as Markdown and HTML, with tables and charts.

A page groups rewrites into regions. A step needs the earlier steps that made a node which the step matches or removes,
and the step after which its match first appeared. Steps that need one another form a region. Each removed or added node
belongs to one region, so the gains of regions add up to the whole. Regions of equal appearance are drawn once.

Names come from unknown models: elements are built by calls that escape every text, and the page's policy forbids the
network and every script.

Runs are compared only if their estimates are comparable: all runs of one model must agree in environment, cost and
shapes. Means are over runs of one model and controller, with Student's intervals. Estimated and measured gains are
never mixed, and each table states how many runs were measured.
"""
