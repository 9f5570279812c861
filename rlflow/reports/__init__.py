"""Pages about one finished run or several, as Markdown and HTML, with tables and charts."""
