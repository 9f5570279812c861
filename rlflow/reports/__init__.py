"""Pages about one or several finished runs, as HTML, with tables and charts.

A page groups rewrites into regions. A rewrite needs the earlier rewrites that made a node which it matches or removes,
and the rewrite after which its match first appeared. Rewrites that need one another form a region. Each rewrite belongs
to one region, so the gains of the regions add up to the total gain. Regions of equal appearance are drawn once.

The names of operators come from untrusted models. HTML elements are therefore built by `markup.tag`, which escapes
every text. The Content-Security-Policy of a page forbids network access and scripts.

Runs are compared only if their estimates are comparable: all runs of one model must have equal options of environment
and cost, and equal shapes. Means are over the runs of one model and controller, with confidence intervals by Student's
t. Estimated and measured gains are never mixed, and each table states how many runs were measured.
"""
