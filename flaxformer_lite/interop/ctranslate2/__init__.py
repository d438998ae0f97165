"""Export to CTranslate2: `export.py` checks the model, `variables.py` names its arrays, `files.py` writes the folder."""
