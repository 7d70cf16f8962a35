#!/usr/bin/env python3
"""Builds tiny random-weight Wan checkpoints in diffusers layout and golden tensors of every stage.

  python make_oracle.py --set trimmed --out ../../tests/data/oracle   (what Git keeps)
  python make_oracle.py --set full --out DIR                          (then: LATENTD_ORACLE=DIR tools/test)
  python make_oracle.py ... --only NAME[,NAME]                (one checkpoint, or 'schedulers')

Everything is made by the installed diffusers / transformers / sentencepiece packages; nothing here re-implements
the models.  Weights come from one torch.Generator per checkpoint, so the same versions give the same files.
"""
import argparse, base64, contextlib, hashlib, json, math, os, shutil, sys, time, warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")
import numpy as np
import torch
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import tokenizer_corpus as TC

import diffusers, transformers
from diffusers import (AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler,
                       WanImageToVideoPipeline, WanPipeline, WanTransformer3DModel)
from diffusers.pipelines.wan import pipeline_wan as PW
from transformers import CLIPVisionConfig, CLIPVisionModel, UMT5Config, UMT5EncoderModel

torch.set_grad_enabled(False)
torch.set_num_threads(2)


# ----------------------------------------------------------------------------------------------------------- helpers
def gen(seed):
    return torch.Generator("cpu").manual_seed(seed)


def randn(g, *shape):
    return torch.randn(*shape, generator=g)


def sv(path, tensors, meta=None):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    out = {}
    for k, v in tensors.items():
        if not isinstance(v, torch.Tensor):
            v = torch.as_tensor(v)
        out[k] = v.detach().clone().contiguous()
    # one metadata key, so that the header (a hash map on the writer's side) is byte-stable
    save_file(out, path, metadata={"meta": json.dumps(meta or {}, sort_keys=True)})


def jdump(path, obj):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        json.dump(obj, f, indent=1, ensure_ascii=True)
        f.write("\n")


def init_weights(model, g, overrides=()):
    """fan-in scaled normals; norm scales around 1; biases 0.1; `overrides` is [(substring, multiplier)]."""
    for name, p in model.named_parameters():
        leaf = name.split(".")[-1]
        if leaf in ("gamma",) or (leaf == "weight" and p.ndim == 1):
            v = 1.0 + 0.2 * randn(g, *p.shape)
        elif leaf == "bias":
            v = 0.1 * randn(g, *p.shape)
        elif "scale_shift_table" in name:
            v = 0.35 * randn(g, *p.shape)
        elif "relative_attention_bias" in name:
            v = 0.6 * randn(g, *p.shape)
        elif "shared" in name or "embed_tokens" in name:
            v = randn(g, *p.shape)
        elif p.ndim >= 2:
            fan_in = p[0].numel()
            v = randn(g, *p.shape) / math.sqrt(fan_in)
        else:
            v = 0.1 * randn(g, *p.shape)
        for sub, mul in overrides:
            if sub in name:
                v = v * mul
        p.data.copy_(v)


# ------------------------------------------------------------------------------------------------ tokenizer (spiece)
def build_tokenizer(d, seed, vocab_size, style="metaspace", byte_fallback_json=False, extra_ids=300, corpus_n=1500):
    """spiece.model + tokenizer.json + tokenizer_config.json + special_tokens_map.json, ids laid out as umT5's
    (<pad> 0, </s> 1, <s> 2, <unk> 3, byte pieces, pieces, then <extra_id_299>..<extra_id_0>).  The json is what
    transformers 4's T5Converter writes for such a spiece.model: Precompiled+Strip(right)+Replace normalizer,
    Metaspace pre-tokenizer (style 'ws_metaspace': the older WhitespaceSplit+Metaspace sequence), Unigram unk_id 3."""
    import sentencepiece as spm
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import Unigram
    from transformers.convert_slow_tokenizer import import_protobuf

    os.makedirs(d, exist_ok=True)
    import io
    buf = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TC.corpus(seed, corpus_n)), model_writer=buf, vocab_size=vocab_size,
        model_type="unigram", pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="</s>",
        bos_piece="<s>", unk_piece="<unk>", byte_fallback=True, character_coverage=0.9995, split_digits=True,
        required_chars="".join(chr(i) for i in range(33, 127)), normalization_rule_name="nmt_nfkc", hard_vocab_limit=False, num_threads=1, minloglevel=2)
    with open(os.path.join(d, "spiece.model"), "wb") as f:
        f.write(buf.getvalue())
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(buf.getvalue())
    vocab = [(p.piece, p.score) for p in proto.pieces]
    n = len(vocab)
    vocab += [(f"<extra_id_{i}>", 0.0) for i in range(extra_ids - 1, -1, -1)]
    tok = Tokenizer(Unigram(vocab, unk_id=proto.trainer_spec.unk_id, byte_fallback=byte_fallback_json))
    tok.normalizer = normalizers.Sequence([
        normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
        normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")])
    meta = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    tok.pre_tokenizer = meta if style == "metaspace" else pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), meta])
    tok.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    tok.post_processor = processors.TemplateProcessing(single=["$A", "</s>"], pair=["$A", "</s>", "$B", "</s>"],
                                                       special_tokens=[("</s>", 1)])
    special = ["<pad>", "</s>", "<s>", "<unk>"] + [f"<extra_id_{i}>" for i in range(extra_ids - 1, -1, -1)]
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    tok.save(os.path.join(d, "tokenizer.json"), pretty=False)
    ids = {s: tok.token_to_id(s) for s in special}
    assert ids["<extra_id_299>"] == n and ids["<unk>"] == 3
    addl = [f"<extra_id_{i}>" for i in range(extra_ids)]
    jdump(os.path.join(d, "tokenizer_config.json"), {
        "added_tokens_decoder": {str(ids[s]): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                                               "single_word": False, "special": True} for s in special},
        "additional_special_tokens": addl, "bos_token": "<s>", "clean_up_tokenization_spaces": True,
        "eos_token": "</s>", "extra_ids": extra_ids, "extra_special_tokens": {},
        "model_max_length": 1000000000000000019884624838656, "pad_token": "<pad>", "sp_model_kwargs": {},
        "tokenizer_class": "T5Tokenizer", "unk_token": "<unk>"})
    one = lambda s: {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    jdump(os.path.join(d, "special_tokens_map.json"), {
        "additional_special_tokens": addl, "bos_token": one("<s>"), "eos_token": one("</s>"),
        "pad_token": one("<pad>"), "unk_token": one("<unk>")})
    return n + extra_ids


# ------------------------------------------------------------------------------------------------- checkpoint builder
def build_checkpoint(name, spec, root):
    d = os.path.join(root, "checkpoints", name)
    shutil.rmtree(d, ignore_errors=True)
    os.makedirs(d)
    g = gen(spec["seed"])
    # tokenizer + text encoder
    nvoc = build_tokenizer(os.path.join(d, "tokenizer"), **spec["tok"])
    te_cfg = dict(spec["te"])
    cfg = UMT5Config(vocab_size=(nvoc + 127) // 128 * 128, is_encoder_decoder=True, feed_forward_proj="gated-gelu",
                     dropout_rate=0.1, layer_norm_epsilon=1e-6, initializer_factor=1.0, num_decoder_layers=te_cfg["num_layers"],
                     tie_word_embeddings=False, **te_cfg)
    te = UMT5EncoderModel(cfg).eval()
    init_weights(te, g, [("SelfAttention.q", te_cfg["d_kv"] ** -0.5), ("SelfAttention.o", 0.7), ("wo", 0.7)])
    te_dtype = getattr(torch, spec.get("te_dtype", "float32"))
    te.to(te_dtype).save_pretrained(os.path.join(d, "text_encoder"), max_shard_size=spec.get("te_shard", "5GB"))
    if spec.get("te_dup_embed"):
        p = os.path.join(d, "text_encoder", "model.safetensors")
        sd = load_file(p)
        sd["encoder.embed_tokens.weight"] = sd["shared.weight"].clone()
        save_file(sd, p, metadata={"format": "pt"})
    # vae
    vae = AutoencoderKLWan(**spec["vae"]).eval()
    init_weights(vae, g)
    zc = spec["vae"]["z_dim"]
    mean = torch.tensor(vae.config.latents_mean).view(1, zc, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std).view(1, zc, 1, 1, 1)
    z = randn(g, 1, zc, 2, 4, 4) * std + mean
    raw = []
    h = vae.decoder.conv_out.register_forward_hook(lambda m, a, o: raw.append(o.detach().clone()))
    vae.decode(z)
    h.remove()
    o = torch.cat(raw, 2)
    k = 0.45 / o.std()
    vae.decoder.conv_out.weight.data.mul_(k)
    vae.decoder.conv_out.bias.data.mul_(k)
    x = torch.rand(1, 3, 5, 32, 32, generator=g) * 2 - 1
    m = vae.encode(x).latent_dist.mean
    vae.quant_conv.weight.data[:zc].mul_((std.view(-1) / m.std())[:, None, None, None, None])
    vae.quant_conv.bias.data[:zc].copy_(mean.view(-1))
    vae.save_pretrained(os.path.join(d, "vae"))
    # transformer(s)
    tr_dtype = spec.get("tr_dtype", "float32")
    for sub, tspec in spec["transformers"].items():
        tr = WanTransformer3DModel(**tspec).eval()
        init_weights(tr, g, [("time_proj.weight", 0.6), ("time_proj.bias", 2.0)])
        c = tr.config
        lat = randn(g, 1, c.in_channels, 2, 4, 4)
        kw = {}
        if c.image_dim:
            kw["encoder_hidden_states_image"] = randn(g, 1, spec["clip_tokens"], c.image_dim)
        o = tr(lat, torch.tensor([500.0]), randn(g, 1, 512, c.text_dim), return_dict=False, **kw)[0]
        tr.proj_out.weight.data.mul_(1.0 / o.std())
        tr.proj_out.bias.data.mul_(1.0 / o.std())
        path = os.path.join(d, sub)
        tr.save_pretrained(path)
        if tr_dtype != "float32":  # stored mixed, as real bf16 exports: fp32 modules stay fp32
            tr = WanTransformer3DModel.from_pretrained(path, torch_dtype=getattr(torch, tr_dtype))
            shutil.rmtree(path)
            tr.save_pretrained(path, max_shard_size=spec.get("tr_shard", "10GB"))
            cp = os.path.join(path, "config.json")
            c = json.load(open(cp))
            c.pop("_name_or_path", None)
            jdump(cp, c)
    # image encoder
    if "clip" in spec:
        clip = CLIPVisionModel(CLIPVisionConfig(**spec["clip"])).eval()
        init_weights(clip, g)
        clip.save_pretrained(os.path.join(d, "image_encoder"))
        s = spec["clip"]["image_size"]
        jdump(os.path.join(d, "image_processor", "preprocessor_config.json"), {
            "crop_size": {"height": s, "width": s}, "do_center_crop": True, "do_convert_rgb": True,
            "do_normalize": True, "do_rescale": True, "do_resize": True,
            "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "CLIPImageProcessor",
            "image_std": [0.26862954, 0.26130258, 0.27577711], "resample": 3, "rescale_factor": 0.00392156862745098,
            "size": {"shortest_edge": s}})
    # scheduler and model_index as in the published repositories
    if spec.get("sched", "unipc") == "unipc":
        sch = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=spec["shift"],
                                      **spec.get("sched_kw", {}))
    else:
        sch = FlowMatchEulerDiscreteScheduler(shift=spec["shift"], **spec.get("sched_kw", {}))
    sch.save_pretrained(os.path.join(d, "scheduler"))
    two = "transformer_2" in spec["transformers"]
    index = {"_class_name": spec.get("pipe", "WanPipeline"), "_diffusers_version": "0.35.0.dev0",
             "boundary_ratio": spec.get("boundary_ratio"), "expand_timesteps": spec.get("expand_timesteps", False),
             "scheduler": ["diffusers", type(sch).__name__], "text_encoder": ["transformers", "UMT5EncoderModel"],
             "tokenizer": ["transformers", "T5TokenizerFast"],
             "transformer": ["diffusers", "WanTransformer3DModel"],
             "transformer_2": ["diffusers", "WanTransformer3DModel"] if two else [None, None],
             "vae": ["diffusers", "AutoencoderKLWan"]}
    if spec.get("plain_index"):  # Wan2.1 repositories predate these keys
        for key in ("boundary_ratio", "expand_timesteps", "transformer_2"):
            index.pop(key)
    if spec.get("pipe") == "WanImageToVideoPipeline":
        has = "clip" in spec
        index["image_encoder"] = ["transformers", "CLIPVisionModel"] if has else [None, None]
        index["image_processor"] = ["transformers", "CLIPImageProcessor"] if has else [None, None]
    jdump(os.path.join(d, "model_index.json"), index)
    return d


def load_pipe(d, cls=WanPipeline, tr_dtype=torch.float32, te_dtype=torch.float32, vae_dtype=torch.float32):
    dt = {"transformer": tr_dtype, "transformer_2": tr_dtype, "text_encoder": te_dtype, "vae": vae_dtype,
          "image_encoder": torch.float32, "default": torch.float32}
    pipe = cls.from_pretrained(d, torch_dtype=dt, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    return pipe


# --------------------------------------------------------------------------------------------------------- goldens
def golden_tokens(d, out, max_lens=(512,)):
    """ids_json = tokenizer.json through `tokenizers` (what transformers 4 gave and what a port should match);
    ids_pipeline = what WanPipeline in the installed transformers 5 gives; ids_sp = spiece.model + </s>."""
    import sentencepiece as spm
    from tokenizers import Tokenizer
    from transformers import T5TokenizerFast

    td = os.path.join(d, "tokenizer")
    raw = Tokenizer.from_file(os.path.join(td, "tokenizer.json"))
    sp = spm.SentencePieceProcessor(model_file=os.path.join(td, "spiece.model"))
    hf = T5TokenizerFast.from_pretrained(td)
    rec, tens = [], {}

    def noftfy(p):
        import html as H
        import regex
        return regex.sub(r"\s+", " ", H.unescape(H.unescape(p)).strip()).strip()

    def trunc(ids, n):
        return ids if len(ids) <= n else ids[: n - 1] + [1]

    for name, p in TC.PROMPTS.items():
        c = PW.prompt_clean(p)
        full = raw.encode(c).ids
        r = {"name": name, "prompt": p, "clean": c, "clean_no_ftfy": noftfy(p), "ids_json_untruncated_len": len(full)}
        for n in max_lens:
            t = hf([c], padding="max_length", max_length=n, truncation=True, add_special_tokens=True,
                   return_attention_mask=True, return_tensors="pt")
            v = [i for i, a in zip(t.input_ids[0].tolist(), t.attention_mask[0].tolist()) if a]
            j = trunc(full, n)
            s = trunc(sp.encode(c) + [1], n)
            r[f"len_{n}"] = len(j)
            r[f"pipeline_equals_json_{n}"] = v == j
            r[f"sp_equals_json_{n}"] = s == j
            tens[f"{name}.ids_json_{n}"] = torch.tensor(j)
            tens[f"{name}.ids_pipeline_{n}"] = torch.tensor(v)
            tens[f"{name}.ids_sp_{n}"] = torch.tensor(s)
        rec.append(r)
    jdump(os.path.join(out, "prompts.json"), rec)
    sv(os.path.join(out, "tokens.safetensors"), tens)
    return rec, tens


def golden_text(pipe, d, out, names, layer_case="plain", bf16=True):
    """last_hidden_state for ids (fp32: sdpa is the default, eager beside it), per-layer states, encode_prompt output."""
    t = {}
    te = pipe.text_encoder
    toks = load_file(os.path.join(out, "tokens.safetensors"))
    ids = torch.zeros(len(names), 512, dtype=torch.long)
    mask = torch.zeros(len(names), 512, dtype=torch.long)
    for i, n in enumerate(names):
        v = toks[f"{n}.ids_json_512"]
        ids[i, : len(v)] = v
        mask[i, : len(v)] = 1
    t["ids"], t["mask"] = ids, mask
    hs = te(ids, mask).last_hidden_state
    te_e = UMT5EncoderModel.from_pretrained(os.path.join(d, "text_encoder"), dtype=torch.float32, attn_implementation="eager").eval()
    he = te_e(ids, mask).last_hidden_state
    for i, n in enumerate(names):
        L = int(mask[i].sum())
        t[f"{n}.hidden"] = hs[i, :L]
        t[f"{n}.hidden_eager_maxdiff"] = (hs[i, :L] - he[i, :L]).abs().max()
    i = names.index(layer_case)
    L = int(mask[i].sum())
    acc = []
    hooks = [b.register_forward_hook(lambda m, a, o: acc.append((o[0] if isinstance(o, tuple) else o).detach().clone()))
             for b in te.encoder.block]
    te(ids[i: i + 1], mask[i: i + 1])
    [h.remove() for h in hooks]
    t["layers.embed"] = te.encoder.embed_tokens(ids[i: i + 1])[0, :L]
    for k, a in enumerate(acc):
        t[f"layers.block{k}"] = a[0, :L]
    att = te.encoder.block[0].layer[0].SelfAttention
    t["layers.position_bias0_150"] = att.compute_bias(150, 150)[0, :1]
    t["layers.bucket_row0_150"] = att._relative_position_bucket(torch.arange(150)[None, :] - torch.zeros(1, 1, dtype=torch.long))[0]
    t["layers.bucket_col0_150"] = att._relative_position_bucket(torch.zeros(1, 1, dtype=torch.long) - torch.arange(150)[None, :])[0]
    info = {}
    if bf16:
        tb = UMT5EncoderModel.from_pretrained(os.path.join(d, "text_encoder"), dtype=torch.bfloat16).eval()
        info["bf16_param_dtypes"] = sorted({f"{n.split('.')[-2]}:{p.dtype}" for n, p in tb.named_parameters()})
        hb = tb(ids, mask).last_hidden_state
        info["bf16_out_dtype"] = str(hb.dtype)
        for i, n in enumerate(names):
            t[f"{n}.hidden_bf16"] = hb[i, : int(mask[i].sum())]
        info["bf16_vs_fp32_maxabs"] = float((hb.float() - hs).abs().mul(mask[..., None]).max())
    pe, ne = pipe.encode_prompt(TC.PROMPTS["plain"], None, True, max_sequence_length=512)
    t["encode_prompt.plain_512"], t["encode_prompt.empty_512"] = pe[0], ne[0]
    pe2, _ = pipe.encode_prompt(TC.PROMPTS["plain"], None, False, max_sequence_length=64)
    t["encode_prompt.plain_64"] = pe2[0]
    sv(os.path.join(out, "text.safetensors"), t, {"names": names, "info": info})
    return info


def run_transformer(tr, lat, ts, txt, img=None, capture=False):
    acc, hooks = {}, []
    if capture:
        def grab(key, fp=lambda o: o):
            def f(m, a, o):
                acc[key] = fp(o).detach().clone()
            return f
        hooks.append(tr.patch_embedding.register_forward_hook(grab("patch_embedding", lambda o: o.flatten(2).transpose(1, 2))))
        ce = tr.condition_embedder
        hooks.append(ce.timesteps_proj.register_forward_hook(grab("timestep_sincos")))
        hooks.append(ce.register_forward_hook(lambda m, a, o: acc.update(
            temb=o[0].clone(), timestep_proj=o[1].clone(), text_proj_first8=o[2][:, :8].clone(), text_proj_last1=o[2][:, -1:].clone(),
            **({"image_proj": o[3].clone()} if o[3] is not None else {}))))
        hooks.append(tr.rope.register_forward_hook(lambda m, a, o: acc.update(rope_cos=o[0].clone(), rope_sin=o[1].clone())))
        for i, b in enumerate(tr.blocks):
            hooks.append(b.register_forward_hook(grab(f"block{i}")))
        b = tr.blocks[0]
        hooks += [b.norm1.register_forward_hook(grab("block0.norm1")), b.attn1.register_forward_hook(grab("block0.attn1")),
                  b.attn2.register_forward_hook(grab("block0.attn2")), b.ffn.register_forward_hook(grab("block0.ffn")),
                  b.attn1.norm_q.register_forward_hook(grab("block0.attn1.norm_q"))]
        hooks.append(tr.norm_out.register_forward_hook(grab("norm_out")))
    kw = {} if img is None else {"encoder_hidden_states_image": img}
    o = tr(lat, ts, txt, return_dict=False, **kw)[0]
    [h.remove() for h in hooks]
    return o, acc


def golden_transformer(d, out, sub, seed, cases, text_dim, img_tokens=0, image_dim=0, expand=False):
    g = gen(seed)
    f32 = WanTransformer3DModel.from_pretrained(os.path.join(d, sub), torch_dtype=torch.float32).eval()
    b16 = WanTransformer3DModel.from_pretrained(os.path.join(d, sub), torch_dtype=torch.bfloat16).eval()
    t, meta = {}, {"bf16_fp32_params": sorted({".".join(k for k in n.split(".") if not k.isdigit())
                                               for n, p in b16.named_parameters() if p.dtype == torch.float32})}
    txt = torch.zeros(2, 512, text_dim)
    txt[0, :37] = randn(g, 37, text_dim)
    txt[1, :3] = randn(g, 3, text_dim)
    t["text"] = txt[:, :40]  # rows 40..511 are zero
    img = randn(g, 1, img_tokens, image_dim) if img_tokens else None
    if img is not None:
        t["image"] = img
    cin = f32.config.in_channels
    errs = []
    for ci, (B, T, H, W, ts) in enumerate(cases):
        lat = randn(g, B, cin, T, H, W)
        steps = torch.tensor(ts, dtype=torch.float32).expand(B)
        if all(float(x).is_integer() for x in ts):
            steps = steps.to(torch.int64)  # UniPC hands int64 timesteps to the model
        if expand:
            p = f32.config.patch_size
            m = torch.ones(T, H // p[1], W // p[2])
            if ci % 2:
                m[0] = 0  # first latent frame clean, as TI2V image-to-video
            steps = (m.flatten()[None] * float(ts[0])).expand(B, -1)
        im = None if img is None else img.expand(B, -1, -1)
        cap = ci == 0
        o, acc = run_transformer(f32, lat, steps, txt[:B], im, capture=cap)
        ob, accb = run_transformer(b16, lat.bfloat16(), steps, txt[:B].bfloat16(), None if im is None else im.bfloat16(), capture=cap)
        t[f"case{ci}.latents"], t[f"case{ci}.timestep"] = lat, steps
        t[f"case{ci}.out_fp32"], t[f"case{ci}.out_bf16"] = o, ob
        for k, v in acc.items():
            t[f"case{ci}.fp32.{k}"] = v
        for k, v in accb.items():
            if k in ("temb", "timestep_proj", "block0", "patch_embedding", "block0.attn1.norm_q") or k == f"block{len(b16.blocks)-1}":
                t[f"case{ci}.bf16.{k}"] = v
        errs.append({"case": ci, "shape": [B, cin, T, H, W], "out_std": float(o.std()),
                     "bf16_vs_fp32_maxabs": float((ob.float() - o).abs().max()), "bf16_vs_fp32_rms": float((ob.float() - o).pow(2).mean().sqrt())})
    meta["cases"] = errs
    sv(os.path.join(out, f"{sub}.safetensors"), t, meta)
    return errs


def golden_vae(d, out, seed, dec_cases, enc_cases, bf16_case=0):
    vae = AutoencoderKLWan.from_pretrained(os.path.join(d, "vae"), torch_dtype=torch.float32).eval()
    g = gen(seed)
    zc = vae.config.z_dim
    mean = torch.tensor(vae.config.latents_mean).view(1, zc, 1, 1, 1)
    std = 1.0 / torch.tensor(vae.config.latents_std).view(1, zc, 1, 1, 1)
    t, info = {}, []
    for i, (B, T, H, W) in enumerate(dec_cases):
        lat = randn(g, B, zc, T, H, W)
        z = lat / std + mean
        t[f"dec{i}.latents"] = lat
        if i == 0:
            t[f"dec{i}.z"] = z
            acc, hooks = {}, []
            calls = {}
            def grab(key):
                def f(m, a, o):
                    n = calls[key] = calls.get(key, -1) + 1
                    acc[f"{key}.frame{n}"] = o.detach().clone()
                return f
            hooks.append(vae.post_quant_conv.register_forward_hook(grab("post_quant_conv")))
            hooks.append(vae.decoder.conv_in.register_forward_hook(grab("decoder.conv_in")))
            hooks.append(vae.decoder.mid_block.register_forward_hook(grab("decoder.mid_block")))
            for k, b in enumerate(vae.decoder.up_blocks):
                hooks.append(b.register_forward_hook(grab(f"decoder.up_blocks.{k}")))
            o = vae.decode(z, return_dict=False)[0]
            [h.remove() for h in hooks]
            t.update({f"dec0.{k}": v for k, v in acc.items() if not (k.startswith("decoder.up_blocks.3") or k.startswith("decoder.up_blocks.2"))})
        else:
            o = vae.decode(z, return_dict=False)[0]
        t[f"dec{i}.out"] = o
        e = {"dec": i, "latent": [B, zc, T, H, W], "out": list(o.shape), "std": float(o.std()), "clamped": float((o.abs() >= 1).float().mean())}
        if i == bf16_case:
            vb = AutoencoderKLWan.from_pretrained(os.path.join(d, "vae"), torch_dtype=torch.bfloat16).eval()
            lb = lat.bfloat16()
            mb = torch.tensor(vae.config.latents_mean).view(1, zc, 1, 1, 1).to(torch.bfloat16)
            sb = 1.0 / torch.tensor(vae.config.latents_std).view(1, zc, 1, 1, 1).to(torch.bfloat16)
            ob = vb.decode(lb / sb + mb, return_dict=False)[0]
            t[f"dec{i}.out_bf16"] = ob
            e["bf16_vs_fp32_maxabs"] = float((ob.float() - o).abs().max())
        info.append(e)
    for i, (B, T, H, W) in enumerate(enc_cases):
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, H), torch.linspace(-1, 1, W), indexing="ij")
        fr = [torch.stack([torch.sin(3 * xx + 0.3 * k + c) * torch.cos(2 * yy - 0.2 * k + 0.5 * c) for c in range(3)]) for k in range(T)]
        x = torch.stack(fr, 1)[None].expand(B, -1, -1, -1, -1) * 0.8 + 0.2 * (torch.rand(B, 3, T, H, W, generator=g) * 2 - 1)
        x = x.contiguous()
        dist = vae.encode(x).latent_dist
        t[f"enc{i}.video"], t[f"enc{i}.mean"], t[f"enc{i}.logvar"] = x, dist.mean, dist.logvar
        t[f"enc{i}.normalized"] = (dist.mode() - mean) * std
        info.append({"enc": i, "video": [B, 3, T, H, W], "mean_std": float(dist.mean.std())})
    sv(os.path.join(out, "vae.safetensors"), t, {"info": info})
    return info


def golden_tiled_vae(d, out, seed, cases):
    """Decodes in overlapping tiles. A case: latent frames, height, width; pixels of a tile's height, width, overlap."""
    vae = AutoencoderKLWan.from_pretrained(os.path.join(d, "vae"), torch_dtype=torch.float32).eval()
    g = gen(seed)
    t, info = {}, []
    for i, (T, H, W, height, width, overlap) in enumerate(cases):
        vae.enable_tiling(height, width, height - overlap, width - overlap)
        t[f"dec{i}.z"] = randn(g, 1, vae.config.z_dim, T, H, W)
        t[f"dec{i}.out"] = vae.decode(t[f"dec{i}.z"], return_dict=False)[0]
        t[f"dec{i}.tile"] = torch.tensor([height, width, overlap])
        info.append({"dec": i, "out": list(t[f"dec{i}.out"].shape), "tile": [height, width, overlap]})
    sv(os.path.join(out, "tiled_vae.safetensors"), t, {"info": info})
    return info


@contextlib.contextmanager
def record_models(pipe, store):
    hooks = []
    for nm in ("transformer", "transformer_2"):
        m = getattr(pipe, nm, None)
        if m is not None:
            hooks.append(m.register_forward_hook(
                (lambda nm: lambda mod, a, kw, o: store.append((nm, kw["timestep"].clone(), o[0].detach().clone(), kw["hidden_states"].dtype)))(nm), with_kwargs=True))
    yield
    [h.remove() for h in hooks]


def golden_pipeline(pipe, out, tag, seed, prompt, negative, height, width, frames, steps, guidance, guidance_2=None,
                    image=None, keep_preds=True, max_len=512, keep_video=True, batch=1, image_name=""):
    g = gen(seed)
    v = pipe.vae.config
    T, H, W = (frames - 1) // v.scale_factor_temporal + 1, height // v.scale_factor_spatial, width // v.scale_factor_spatial
    lat0 = randn(g, batch, v.z_dim, T, H, W)
    per, models = [], []
    extra = {}
    if image is not None:
        extra["image"] = image

    def cb(p, i, t, kw):
        per.append(kw["latents"].clone())
        return {}
    with record_models(pipe, models):
        lat = pipe(prompt=prompt, negative_prompt=negative, height=height, width=width, num_frames=frames,
                   num_inference_steps=steps, guidance_scale=guidance, guidance_scale_2=guidance_2, latents=lat0.clone(),
                   output_type="latent", callback_on_step_end=cb, max_sequence_length=max_len, **extra).frames
    # second run without our recording must agree, and gives the video
    vid = pipe(prompt=prompt, negative_prompt=negative, height=height, width=width, num_frames=frames,
               num_inference_steps=steps, guidance_scale=guidance, guidance_scale_2=guidance_2, latents=lat0.clone(),
               output_type="pt", max_sequence_length=max_len, **extra).frames
    cfg = guidance > 1.0
    n = 2 if cfg else 1
    t = {"latents_init": lat0, "latents_final": lat, "video": vid, "timesteps": pipe.scheduler.timesteps.clone(),
         "sigmas": pipe.scheduler.sigmas.clone(), "latents_steps": torch.stack(per)}
    if keep_preds:
        t["noise_cond"] = torch.stack([m[2] for m in models[0::n]])
        if cfg:
            t["noise_uncond"] = torch.stack([m[2] for m in models[1::n]])
    if not keep_video:
        t.pop("video")
    which = [m[0] for m in models[0::n]]
    meta = {"prompt": prompt, "negative_prompt": negative,
            "height": height, "width": width, "num_frames": frames, "steps": steps, "guidance_scale": guidance,
            "guidance_scale_2": guidance_2, "max_sequence_length": max_len, "model_per_step": which,
            "scheduler": type(pipe.scheduler).__name__, "transformer_dtype": str(pipe.transformer.dtype),
            "text_encoder_dtype": str(pipe.text_encoder.dtype), "vae_dtype": str(pipe.vae.dtype),
            "scheduler_config": {k: v for k, v in pipe.scheduler.config.items() if not k.startswith("_")},
            "image": image_name,
            "latents_dtype_per_step": [str(p.dtype) for p in per][:3], "video_std": float(vid.float().std()),
            "video_clamped": float(((vid <= 0) | (vid >= 1)).float().mean()), "latents_final_std": float(lat.float().std())}
    sv(os.path.join(out, f"pipeline_{tag}.safetensors"), t, meta)
    return {k: meta[k] for k in ("video_std", "video_clamped", "latents_final_std", "model_per_step")}


# ------------------------------------------------------------------------------------------------------- schedulers
def golden_schedulers(out, seed, unipc, euler, steps_list, table_steps, shifts):
    g = gen(seed)
    shape = (1, 4, 2, 3, 4)
    n = max(steps_list)
    preds = randn(g, n, *shape)
    x0 = randn(g, *shape)
    tens, meta = {"sample0": x0, "model_outputs": preds}, {}

    def run(sch, steps, dtype, **st):
        sch.set_timesteps(steps, device="cpu", **st) if steps else sch.set_timesteps(device="cpu", **st)
        sch.set_begin_index(0)
        x, xs = x0.clone(), []
        for i, t in enumerate(sch.timesteps):
            x = sch.step(preds[i].to(dtype), t, x, return_dict=False)[0]
            xs.append(x.clone())
        return torch.stack(xs)

    for tag, kw in unipc.items():
        for s in steps_list:
            for dt in (torch.float32, torch.bfloat16):
                if dt == torch.bfloat16 and s != min(steps_list):
                    continue
                sch = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, **kw)
                key = f"unipc.{tag}.n{s}" + (".bf16" if dt == torch.bfloat16 else "")
                tens[key + ".latents"] = run(sch, s, dt)
                if dt == torch.float32:
                    tens[key + ".timesteps"], tens[key + ".sigmas"] = sch.timesteps.clone(), sch.sigmas.clone()
        meta[f"unipc.{tag}"] = kw
    for tag, (kw, st) in euler.items():
        for s in steps_list if not st else [len(next(iter(st.values())))]:
            for dt in (torch.float32, torch.bfloat16):
                if dt == torch.bfloat16 and s != min(steps_list) and not st:
                    continue
                sch = FlowMatchEulerDiscreteScheduler(**kw)
                key = f"euler.{tag}.n{s}" + (".bf16" if dt == torch.bfloat16 else "")
                tens[key + ".latents"] = run(sch, None if st else s, dt, **st)
                if dt == torch.float32:
                    tens[key + ".timesteps"], tens[key + ".sigmas"] = sch.timesteps.clone(), sch.sigmas.clone()
        meta[f"euler.{tag}"] = [kw, st]
    sv(os.path.join(out, "schedulers.safetensors"), tens, meta)
    tab = {}
    for sh in shifts:
        for s in table_steps:
            a = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=sh)
            a.set_timesteps(s)
            tab[f"unipc.shift{sh}.n{s}.timesteps"], tab[f"unipc.shift{sh}.n{s}.sigmas"] = a.timesteps, a.sigmas
            b = FlowMatchEulerDiscreteScheduler(shift=sh)
            b.set_timesteps(s)
            tab[f"euler.shift{sh}.n{s}.timesteps"], tab[f"euler.shift{sh}.n{s}.sigmas"] = b.timesteps, b.sigmas
    sv(os.path.join(out, "schedule_table.safetensors"), tab)


def golden_misc(out):
    """Tables at real sizes: rotary angles (built in float64), timestep sinusoids, size/frame rounding, post-processing."""
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
    from diffusers.models.embeddings import Timesteps
    from diffusers.video_processor import VideoProcessor
    t = {}
    rows = torch.tensor([0, 1, 2, 3, 5, 8, 13, 20, 21, 29, 44, 51, 89, 103, 144, 233, 377, 512, 610, 800, 987, 1023])
    t["rope.rows"] = rows
    for hd in (12, 24, 28, 32, 40, 64, 128):
        r = WanRotaryPosEmbed(hd, (1, 2, 2), 1024)
        t[f"rope.hd{hd}.cos"], t[f"rope.hd{hd}.sin"] = r.freqs_cos[rows], r.freqs_sin[rows]
        t[f"rope.hd{hd}.split_t_h_w"] = torch.tensor([r.t_dim, r.h_dim, r.w_dim])
    ts = torch.tensor([0.0, 1.0, 37.0, 250.0, 499.5, 523.7, 875.0, 999.0, 1000.0])
    t["sincos.timesteps"] = ts
    for fd in (128, 256):
        t[f"sincos.freq{fd}"] = Timesteps(num_channels=fd, flip_sin_to_cos=True, downscale_freq_shift=0)(ts)
    v = torch.linspace(-1, 1, 3 * 2 * 16 * 16).view(1, 3, 2, 16, 16)
    vp = VideoProcessor(vae_scale_factor=8)
    t["postprocess.in"], t["postprocess.pt"] = v, vp.postprocess_video(v, output_type="pt")
    npv = vp.postprocess_video(v, output_type="np")
    t["postprocess.uint8_pil_round"] = torch.from_numpy((npv[0] * 255).round().astype("uint8"))
    t["postprocess.uint8_export_to_video_trunc"] = torch.from_numpy((npv[0] * 255).astype("uint8"))
    sv(os.path.join(out, "misc.safetensors"), t)
    rf = lambda n: max(n // 4 * 4 + 1 if n % 4 != 1 else n, 1)
    jdump(os.path.join(out, "rounding.json"), {
        "num_frames": {str(n): rf(n) for n in range(0, 86)},
        "size_multiple": {"wan21 (8 x patch 2)": 16, "ti2v-5b (16 x patch 2)": 32},
        "size_examples_5b": {str(s): s // 32 * 32 for s in (480, 704, 720, 1280, 1264)},
        "check_inputs": "height % 16 or width % 16 != 0 raises ValueError, before the flooring to the model's multiple"})


# -------------------------------------------------------------------------------------------------------------- main
def make_image(seed, h, w, path):
    from PIL import Image
    r = np.random.default_rng(seed)
    y, x = np.mgrid[0:h, 0:w]
    a = np.stack([128 + 100 * np.sin(x / 7 + k) * np.cos(y / (5 + k)) for k in range(3)], -1) + r.normal(0, 8, (h, w, 3))
    im = Image.fromarray(a.clip(0, 255).astype(np.uint8))
    im.save(path)
    return Image.open(path).convert("RGB")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--set", default="full")
    ap.add_argument("--out", required=True)
    ap.add_argument("--only", default="")
    ap.add_argument("--specs", default=os.path.join(HERE, "oracle_specs.py"))
    a = ap.parse_args()
    import runpy
    S = runpy.run_path(a.specs)["SETS"][a.set]
    only = set(x for x in a.only.split(",") if x)
    os.makedirs(a.out, exist_ok=True)
    rp = os.path.join(a.out, "report.json")
    report = json.load(open(rp)) if os.path.exists(rp) else {}
    report["versions"] = {"torch": torch.__version__, "diffusers": diffusers.__version__, "transformers": transformers.__version__,
                          **{m: __import__("importlib.metadata").metadata.version(m) for m in
                             ("tokenizers", "sentencepiece", "safetensors", "ftfy", "regex", "numpy", "accelerate")},
                          "threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}
    if not only or "schedulers" in only:
        golden_schedulers(os.path.join(a.out, "golden", "schedulers"), **S["schedulers"])
        golden_misc(os.path.join(a.out, "golden", "misc"))
        print("schedulers done")
    for name, spec in S["checkpoints"].items():
        if only and name not in only:
            continue
        t0 = time.time()
        d = build_checkpoint(name, spec, a.out)
        out = os.path.join(a.out, "golden", name)
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        R = report[name] = {}
        rec, _ = golden_tokens(d, out, spec.get("max_lens", (512,)))
        R["tokens"] = {r["name"]: [r["len_512"], r["pipeline_equals_json_512"], r["sp_equals_json_512"]] for r in rec}
        is_i2v = spec.get("pipe") == "WanImageToVideoPipeline"
        cls = WanImageToVideoPipeline if is_i2v else WanPipeline
        pipe = load_pipe(d, cls)
        R["text"] = golden_text(pipe, d, out, spec["text_names"], bf16=True)
        for k, (sub, tspec) in enumerate(spec["transformers"].items()):
            R[sub] = golden_transformer(d, out, sub, spec["seed"] + 11 + k, spec["tr_cases"], tspec["text_dim"],
                                        spec.get("clip_tokens", 0) if tspec.get("image_dim") else 0, tspec.get("image_dim") or 0,
                                        spec.get("expand_timesteps", False))
        R["vae"] = golden_vae(d, out, spec["seed"] + 21, spec["dec_cases"], spec["enc_cases"])
        if "tiled_cases" in spec:
            R["tiled_vae"] = golden_tiled_vae(d, out, spec["seed"] + 22, spec["tiled_cases"])
        for k, (tag, kw) in enumerate(spec["pipelines"].items()):
            kw = dict(kw)
            dt = getattr(torch, kw.pop("dtype", "float32"))
            ved = getattr(torch, kw.pop("vae_dtype", "float32"))
            sched = kw.pop("scheduler", None)
            c = kw.pop("cls", None)
            c = {"i2v": WanImageToVideoPipeline, "t2v": WanPipeline, None: cls}[c]
            p = load_pipe(d, c, dt, dt, ved)
            if sched:
                p.scheduler = (UniPCMultistepScheduler if sched[0] == "unipc" else FlowMatchEulerDiscreteScheduler).from_config(
                    p.scheduler.config if sched[0] == "unipc" else {}, **sched[1])
            if kw.get("image"):
                hh, ww = kw["image"]
                kw["image_name"] = f"image_{hh}x{ww}.png"
                kw["image"] = make_image(spec["seed"] + 31, hh, ww, os.path.join(out, kw["image_name"]))
            kw["prompt"] = [TC.PROMPTS.get(x, x) for x in kw["prompt"]] if isinstance(kw["prompt"], list) else TC.PROMPTS.get(kw["prompt"], kw["prompt"])
            if isinstance(kw.get("negative"), str):
                kw["negative"] = TC.PROMPTS.get(kw["negative"], kw["negative"])
            R["pipeline_" + tag] = golden_pipeline(p, out, tag, spec["seed"] + 41 + k, **kw)
            if kw.get("image") is not None:
                golden_i2v_parts(p, out, tag, kw)
        jdump(rp, report)
        print(name, json.dumps({k: v for k, v in R.items() if k.startswith("pipeline")}), round(time.time() - t0, 1), "s")
    jdump(rp, report)
    sums, total = {}, 0
    for r, _, fs in os.walk(a.out):
        for f in fs:
            p = os.path.join(r, f)
            if f != "SHA256SUMS.json":
                total += os.path.getsize(p)
                sums[os.path.relpath(p, a.out)] = [os.path.getsize(p), hashlib.sha256(open(p, "rb").read()).hexdigest()]
    jdump(os.path.join(a.out, "SHA256SUMS.json"), dict(sorted(sums.items())))
    print(f"total {total/1e6:.1f} MB in {len(sums)} files")


def golden_i2v_parts(p, out, tag, kw):
    """Preprocessed image, CLIP pixel values / penultimate states, VAE condition (mask + normalised latents)."""
    t = {}
    im = kw["image"]
    if getattr(p, "image_encoder", None) is not None:
        t["clip_pixel_values"] = p.image_processor(images=im, return_tensors="pt")["pixel_values"]
        t["clip_penultimate"] = p.encode_image(im)
    x = p.video_processor.preprocess(im, height=kw["height"], width=kw["width"]).to(torch.float32)
    t["image_preprocessed"] = x
    T = (kw["frames"] - 1) // 4 + 1
    v = p.vae.config
    r = p.prepare_latents(x, 1, v.z_dim, kw["height"], kw["width"], kw["frames"], torch.float32, torch.device("cpu"), None,
                          torch.zeros(1, v.z_dim, T, kw["height"] // v.scale_factor_spatial, kw["width"] // v.scale_factor_spatial))
    t["condition"] = r[1]
    if len(r) == 3:
        t["first_frame_mask"] = r[2]
    sv(os.path.join(out, f"i2v_parts_{tag}.safetensors"), t)


if __name__ == "__main__":
    main()
