"""The quality of answers that are texts: `translations` has the settings of metrics, and computes BLEU, chrF and exact match."""
