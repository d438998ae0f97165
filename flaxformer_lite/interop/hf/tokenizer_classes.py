"""The tokenizer classes of the library: special tokens that a class has by itself, where its folder lists none.

One table, `CLASSES`. The files of a folder come before it: what they state, null included, is not replaced.

Reference: transformers 5.24, `models/*/tokenization_*.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.interop.hf.folder import read_json

MBART = """
ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX
ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
"""
MBART_50 = """
af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN
te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
"""
M2M_100 = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig
ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl
so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
WMT_21 = """
en ha is ja cs ru zh de
"""
NLLB = """
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab ars_Arab ary_Arab
arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng
bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn
cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn fao_Latn
pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn
hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn
jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn kea_Latn
khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn
lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn
mkd_Cyrl plt_Latn mlt_Latn mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva
nso_Latn nus_Latn nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab
quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn
sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn
tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn tso_Latn tuk_Latn
tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn
xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans zho_Hant zul_Latn
"""
"""Codes of languages, in the order of their ids."""


class TokenizerClass(NamedTuple):
    """Parts of a tokenizer that a class of the library adds to the files of its folder."""

    names: Mapping[str, Any] = {}
    """Special tokens with a name, such as `eos_token`."""
    listed: tuple[str, ...] = ()
    """Further special tokens."""
    frame: tuple[str, ...] = ()
    """The templates of one text and of two, for a `tokenizer.json` without; roles stand for their tokens."""
    extra_ids: int = 0
    """The number of sentinels where the folder does not state it."""
    languages: Mapping[str, Any] = {}
    """The settings of `Languages`, but for the codes; empty: the class has no languages."""
    codes: str = ""
    """The codes of the languages, with spaces between them."""
    open_codes: bool = False
    """Whether a folder may list other languages."""
    own_ids: bool = False
    """Whether a SentencePiece model with ids of its own, `spiece.model` or `tokenizer.model`, is read as the class reads it."""
    legacy: bool = True
    """Whether the text behind a special token gets a space where the folder does not say."""

    def language_tokens(self, values: Mapping[str, object]) -> list[str]:
        """Returns the tokens of the class's languages, by the settings of a folder."""
        codes = WMT_21 if self.codes is M2M_100 and values.get("language_codes") == "wmt21" else self.codes
        return [self.languages["token"].replace("{}", code) for code in codes.split()]


def tokens(**names: Any) -> dict[str, Any]:
    return {f"{name}_token": token for name, token in names.items()}


BERT = tokens(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
FAIRSEQ = tokens(bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>", cls="<s>")
MASKED = FAIRSEQ | {"mask_token": {"content": "<mask>", "lstrip": True}}  # the space before it is part of it
LLAMA = tokens(bos="<s>", eos="</s>", unk="<unk>")
ALBERT = tokens(bos="[CLS]", eos="[SEP]", unk="<unk>", sep="[SEP]", pad="<pad>", cls="[CLS]", mask="[MASK]")
TEXT_END = "<|endoftext|>"
INFILLING = tokens(prefix="▁<PRE>", middle="▁<MID>", suffix="▁<SUF>", eot="▁<EOT>", fill="<FILL_ME>")
BYTES = {
    name: {"content": token, "lstrip": True, "rstrip": True}
    for name, token in tokens(pad="<pad>", eos="</s>", unk="<unk>").items()
}
IN_TEXT = {"source": "none", "target": "source"}

BERT_FRAME = ("cls $A sep", "cls $A sep $B:1 sep:1")
ROBERTA_FRAME = ("cls $A sep", "cls $A sep sep $B sep")
END = ("$A eos", "$A eos $B eos")

PLAIN = TokenizerClass(own_ids=True)
"""A class that has nothing by itself."""
CLASSES: dict[str, TokenizerClass] = {
    **dict.fromkeys(("PreTrainedTokenizer", "TokenizersBackend"), PLAIN),
    **dict.fromkeys(
        ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"),
        TokenizerClass(BERT, frame=BERT_FRAME),
    ),
    **dict.fromkeys(
        ("RobertaTokenizer", "BartTokenizer", "MvpTokenizer", "LongformerTokenizer", "LEDTokenizer"),
        TokenizerClass(MASKED, frame=ROBERTA_FRAME),
    ),
    **dict.fromkeys(("XLMRobertaTokenizer", "BarthezTokenizer"), TokenizerClass(MASKED, frame=ROBERTA_FRAME)),
    "CamembertTokenizer": TokenizerClass(MASKED, ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"), ROBERTA_FRAME),
    "MPNetTokenizer": TokenizerClass(MASKED | tokens(unk="[UNK]"), frame=ROBERTA_FRAME),
    "HerbertTokenizer": TokenizerClass(tokens(cls="<s>", unk="<unk>", pad="<pad>", mask="<mask>", sep="</s>")),
    **dict.fromkeys(("AlbertTokenizer", "RemBertTokenizer"), TokenizerClass(ALBERT, frame=BERT_FRAME)),
    "DebertaV2Tokenizer": TokenizerClass(BERT | tokens(bos="[CLS]", eos="[SEP]"), frame=BERT_FRAME),
    "DebertaTokenizer": TokenizerClass(BERT | tokens(bos="[CLS]", eos="[SEP]"), frame=BERT_FRAME),
    "BigBirdTokenizer": TokenizerClass(ALBERT | tokens(bos="<s>", eos="</s>"), frame=BERT_FRAME),
    "XLNetTokenizer": TokenizerClass(LLAMA | tokens(sep="<sep>", pad="<pad>", cls="<cls>", mask="<mask>")),
    "GPT2Tokenizer": TokenizerClass(dict.fromkeys(("unk_token", "bos_token", "eos_token"), TEXT_END)),
    "CodeGenTokenizer": TokenizerClass(dict.fromkeys(("unk_token", "bos_token", "eos_token"), TEXT_END)),
    "GPTNeoXTokenizer": TokenizerClass(tokens(unk=TEXT_END, bos=TEXT_END, eos=TEXT_END, pad="<|padding|>")),
    "Qwen2Tokenizer": TokenizerClass(dict.fromkeys(("unk_token", "eos_token", "pad_token"), TEXT_END)),
    "LlamaTokenizer": TokenizerClass(LLAMA, own_ids=True, legacy=False),
    "CodeLlamaTokenizer": TokenizerClass(
        LLAMA | INFILLING, frame=("bos $A", "bos $A bos $B"), own_ids=True, legacy=False
    ),
    "GemmaTokenizer": TokenizerClass(
        tokens(unk="<unk>", bos="<bos>", eos="<eos>", pad="<pad>", mask="<mask>"), own_ids=True
    ),
    "T5Tokenizer": TokenizerClass(  # <2xx> are languages of MADLAD-400
        tokens(eos="</s>", unk="<unk>", pad="<pad>"),
        frame=END,
        extra_ids=100,
        languages={"token": "<2{}>", **IN_TEXT},
        own_ids=True,
    ),
    "PegasusTokenizer": TokenizerClass(
        tokens(pad="<pad>", eos="</s>", unk="<unk>", mask="<mask_2>", mask_sent="<mask_1>"),
        ("<mask_1>", *(f"<unk_{n}>" for n in range(2, 103))),
        ("$A eos", "$A $B eos"),
    ),
    "ByT5Tokenizer": TokenizerClass(BYTES, extra_ids=125),
    "MarianTokenizer": TokenizerClass(
        tokens(unk="<unk>", eos="</s>", pad="<pad>"), languages={"token": ">>{}<<", **IN_TEXT}
    ),
    "M2M100Tokenizer": TokenizerClass(
        {name: token for name, token in FAIRSEQ.items() if name != "cls_token"},
        languages={"token": "__{}__"},
        codes=M2M_100,
    ),
    "NllbTokenizer": TokenizerClass(MASKED, languages={"token": "{}"}, codes=NLLB, open_codes=True),
    "MBart50Tokenizer": TokenizerClass(MASKED, languages={"token": "{}"}, codes=MBART + MBART_50),
    "MBartTokenizer": TokenizerClass(
        MASKED, languages={"token": "{}", "source": "behind", "target": "start"}, codes=MBART
    ),
}
"""The classes that are known, by their names without the ending Fast."""

OF_MODELS = {
    **dict.fromkeys(("bert", "electra", "megatron-bert", "nomic_bert"), "BertTokenizer"),
    "distilbert": "DistilBertTokenizer",
    **dict.fromkeys(("roberta", "data2vec-text", "roberta-prelayernorm"), "RobertaTokenizer"),
    "mpnet": "MPNetTokenizer",
    "albert": "AlbertTokenizer",
    "roformer": "RoFormerTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "bart": "BartTokenizer",
    "mvp": "MvpTokenizer",
    **dict.fromkeys(("xlm-roberta", "jina_embeddings_v3"), "XLMRobertaTokenizer"),
    "camembert": "CamembertTokenizer",
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2"), "GPT2Tokenizer"),
    "gpt_neox": "GPTNeoXTokenizer",
    **dict.fromkeys(("qwen2", "qwen3"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "t5gemma"), "GemmaTokenizer"),
    **dict.fromkeys(
        (
            "hunyuan_v1_dense",
            "glm",
            "glm4",
            "stablelm",
            "ernie4_5",
            "phi3",
            "granite",
            "olmo2",
            "olmo3",
            "exaone4",
            "falcon",
            "bloom",
        ),
        "TokenizersBackend",
    ),
    **dict.fromkeys(("t5", "mt5", "umt5"), "T5Tokenizer"),
    "marian": "MarianTokenizer",
    "pegasus": "PegasusTokenizer",
    "mbart": "MBartTokenizer",
    "m2m_100": "M2M100Tokenizer",
}
"""The class of the tokenizer in a folder that names none, by `model_type`."""

SHIFTED = ("PegasusTokenizer",)
"""The classes whose ids are others than those of the SentencePiece model in their folder."""

NOT_READ = {
    "RoFormerTokenizer": "it splits texts by the words of jieba, a program, and no file of the folder has these: give the run ids",
}
"""The classes whose tokenizers no file holds whole, with the reason."""


def stated_class(folder: Path, config: Mapping[str, object]) -> str:
    """Returns the name of the class that a folder states, without the ending Fast; "" where it states none."""
    named = read_json(folder / "tokenizer_config.json").get("tokenizer_class") or config.get("tokenizer_class")
    return str(named or "").removesuffix("Fast")


def class_name(folder: Path, config: Mapping[str, Any]) -> str:
    """Returns the name of the class of a folder's tokenizer, stated or by the model's type; "" where nothing tells it."""
    return stated_class(folder, config) or OF_MODELS.get(config.get("model_type", ""), "")
