"""`pretrax explore`: pages on this machine that show objectives, runs and comparisons.

controls.py          the settings of an objective as controls of a form
commands.py          the command, the gin lines and the Python call that show the same picture
objective_views.py   the picture of an objective on a text
trained_views.py     what a trained model predicts
run_views.py         the metrics of runs, and the reports of comparisons
server.py            the web server, on the standard library
pages.py             the pages, whose programs are in static/
gallery.py           pages that need no server
"""
