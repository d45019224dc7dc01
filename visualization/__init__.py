"""Pictures of objectives on text.

`drawing` makes a `picture.Picture` of an objective and a text. `terminal` prints the picture, and
`picture_page` makes a page of it.
"""
