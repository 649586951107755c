"""Training of the embedded tagger: templates, values, corpora, the network in torch."""
