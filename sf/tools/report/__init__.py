"""One page about runs, from the files that they have left.

`runs` reads them, `groups` sorts them, `statistics` has intervals and bands, `figures` the plots, and `page` the HTML.
"""
