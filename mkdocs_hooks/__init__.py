"""What the documentation's site has beyond its pages: each module is a hook of mkdocs (mkdocs.yml lists them).

Not in the wheel. The pages in docs/ are read on their own as well; what a hook adds is made while the site is built.
"""
