"""The trusted core: what a release is and what it costs, as a document that anybody can price again."""
