"""Pages about one finished run or several, as Markdown and HTML, with tables and charts.

A page shows what needed what. A step needs the earlier ones that made a node it matches or removes, and the one after
which its match first appeared. Steps that need one another are a region: its nodes that went and came are in no other,
and gains of regions add up to the whole. What a losing step opened is what needs it, directly or not. Both pictures of
a region share one layered layout; a node that is only there before may share its position with one that is only there
after. Regions that look alike are drawn once. Names come from strangers: elements are built by calls that escape every
text, and the page's policy forbids the network and any script but its own.

Runs are compared only if their estimates can be: one model's runs must agree in environment, cost and shapes. Means are
over runs of one model and controller, with Student's intervals; estimated and measured gains are never mixed, and how
many runs were measured is stated.
"""
