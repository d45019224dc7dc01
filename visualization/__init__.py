"""What an objective does to text, as pictures: `drawing` makes a `picture.Picture` of an objective
and a text, and `terminal` and `picture_page` render it."""
