"""Checkpoint and golden specifications: `full` (15 MB of goldens), and `trimmed`, which Git keeps in tests/data/oracle."""
NEG = "bright tones, overexposed, static, blurred details, worst quality, low quality"
P1 = "a red fox runs across a snowy forest, cinematic lighting, slow camera pan from left to right"
P2 = "An old sailor looks at the harbour in the morning fog, close-up."

M48 = [-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891, 0.157,
       -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502, -0.2055, -0.0322,
       0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.123, -0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.052,
       0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667]
S48 = [0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.499, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165,
       0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659, 0.7069, 0.5338, 0.4889, 0.4917,
       0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.06,
       0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744]


def tr(heads, hd, layers, ffn, text_dim=64, cin=16, cout=16, **kw):
    return dict(patch_size=(1, 2, 2), num_attention_heads=heads, attention_head_dim=hd, in_channels=cin, out_channels=cout,
                text_dim=text_dim, freq_dim=256, ffn_dim=ffn, num_layers=layers, cross_attn_norm=True,
                qk_norm="rms_norm_across_heads", eps=1e-6, rope_max_seq_len=1024, **kw)


def te(d=64, kv=16, ff=128, layers=2, heads=4):
    return dict(d_model=d, d_kv=kv, d_ff=ff, num_layers=layers, num_heads=heads, relative_attention_num_buckets=32,
                relative_attention_max_distance=128)


def vae21(base, **kw):
    return dict(base_dim=base, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
                temperal_downsample=[False, True, True], dropout=0.0, **kw)


def vae22(base, dec, z=48, mean=M48, std=S48, **kw):
    return dict(base_dim=base, decoder_base_dim=dec, z_dim=z, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
                temperal_downsample=[False, True, True], dropout=0.0, latents_mean=mean, latents_std=std, is_residual=True,
                in_channels=12, out_channels=12, patch_size=2, scale_factor_temporal=4, scale_factor_spatial=16, **kw)


def clip(h=32, layers=3, heads=4, size=28):
    return dict(hidden_size=h, intermediate_size=2 * h, num_hidden_layers=layers, num_attention_heads=heads, image_size=size,
                patch_size=14, hidden_act="gelu", projection_dim=h)


TOK = lambda seed, v=800, **k: dict(seed=seed, vocab_size=v, **k)
TEXT_A = ["plain", "empty", "whitespace", "html", "mixed_unicode", "emoji_oov", "specials", "long", "exact_fit_510"]

SETS = {
    "full": {
        "schedulers": dict(
            seed=1000, steps_list=[4, 20, 50],
            unipc={"shift3": dict(flow_shift=3.0), "shift5": dict(flow_shift=5.0),
                   "shift3_bh1": dict(flow_shift=3.0, solver_type="bh1"),
                   "shift5_order3": dict(flow_shift=5.0, solver_order=3),
                   "shift3_nolof": dict(flow_shift=3.0, lower_order_final=False, final_sigmas_type="sigma_min")},
            euler={"shift1": (dict(shift=1.0), {}), "shift3": (dict(shift=3.0), {}), "shift5": (dict(shift=5.0), {}),
                   "shift5_sigmas": (dict(shift=5.0), {"sigmas": [1.0, 0.75, 0.5, 0.25]})},
            table_steps=[1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 28, 30, 40, 50, 60, 100], shifts=[1.0, 2.0, 3.0, 5.0, 7.0, 8.0, 12.0]),
        "checkpoints": {
            # Wan2.1 T2V: fp32 weights, single files, keys of the first repositories
            "wan21-t2v": dict(
                seed=2101, tok=TOK(7), te=te(), plain_index=True, te_dup_embed=True, shift=3.0, text_names=TEXT_A, max_lens=(512, 226, 64),
                transformers={"transformer": tr(4, 24, 3, 192)}, vae=vae21(7),
                tr_cases=[(1, 3, 4, 6, [999]), (2, 1, 6, 4, [250]), (1, 5, 8, 8, [37]), (1, 2, 4, 4, [0]), (1, 2, 4, 4, [523.7])],
                dec_cases=[(1, 3, 4, 6), (1, 1, 4, 4), (1, 2, 6, 4), (1, 4, 3, 5), (1, 5, 4, 4), (2, 2, 2, 3)],
                enc_cases=[(1, 1, 32, 32), (1, 5, 32, 48), (1, 9, 32, 32), (1, 13, 24, 16), (1, 17, 16, 16)],
                tiled_cases=[(3, 7, 9, 32, 40, 16), (2, 5, 4, 24, 16, 8), (1, 9, 8, 32, 32, 0)],
                pipelines={
                    "unipc8_cfg5": dict(prompt=P1, negative=NEG, height=64, width=96, frames=17, steps=8, guidance=5.0),
                    "unipc8_cfg5_bf16": dict(prompt=P1, negative=NEG, height=64, width=96, frames=17, steps=8, guidance=5.0,
                                             dtype="bfloat16", keep_preds=True, keep_video=True),
                    "unipc4_nocfg": dict(prompt=P2, negative=None, height=32, width=32, frames=9, steps=4, guidance=1.0),
                    "unipc20_shift5": dict(prompt="plain", negative=None, height=32, width=48, frames=5, steps=20, guidance=5.0,
                                           scheduler=("unipc", dict(flow_shift=5.0)), keep_preds=False),
                    "unipc50": dict(prompt=P2, negative="negative_default_en", height=32, width=32, frames=5, steps=50, guidance=6.0, keep_preds=False),
                    "euler6": dict(prompt=P1, negative=NEG, height=48, width=32, frames=13, steps=6, guidance=5.0,
                                   scheduler=("euler", dict(shift=3.0))),
                    "euler6_bf16": dict(prompt=P1, negative=NEG, height=48, width=32, frames=13, steps=6, guidance=5.0,
                                        scheduler=("euler", dict(shift=3.0)), dtype="bfloat16"),
                    "batch2": dict(prompt=[P1, P2], negative=None, height=32, width=32, frames=5, steps=4, guidance=5.0, batch=2),
                    "one_frame_longprompt": dict(prompt="long", negative=NEG, height=64, width=64, frames=1, steps=4, guidance=3.5),
                }),
            # Wan2.2 A14B: two transformers, bf16 weights with fp32 islands, sharded files
            "wan22-a14b": dict(
                seed=2202, tok=TOK(8, 760, style="ws_metaspace"), te=te(48, 16, 96, 3, 3), te_dtype="bfloat16", te_shard="100KB", tr_dtype="bfloat16", tr_shard="700KB",
                shift=3.0, boundary_ratio=0.875, text_names=["plain", "empty", "html", "mixed_unicode"],
                transformers={"transformer": tr(4, 32, 2, 256, 48), "transformer_2": tr(4, 32, 2, 256, 48)}, vae=vae21(5),
                tr_cases=[(1, 2, 4, 6, [999]), (1, 3, 6, 6, [875])], dec_cases=[(1, 2, 4, 4)], enc_cases=[(1, 5, 16, 32)],
                pipelines={
                    "unipc10_cfg4_3": dict(prompt=P1, negative=NEG, height=48, width=64, frames=9, steps=10, guidance=4.0, guidance_2=3.0),
                    "unipc10_cfg4_3_bf16": dict(prompt=P1, negative=NEG, height=48, width=64, frames=9, steps=10, guidance=4.0, guidance_2=3.0, dtype="bfloat16"),
                    "unipc6_cfg4_only": dict(prompt=P2, negative=None, height=32, width=48, frames=5, steps=6, guidance=4.0),
                }),
            # Wan2.2 TI2V-5B: per-token timesteps, residual VAE 16x with patch 2, 48 latent channels
            "wan22-ti2v-5b": dict(
                seed=2203, tok=TOK(9, 700), te=te(), shift=5.0, expand_timesteps=True, text_names=["plain", "empty"],
                transformers={"transformer": tr(4, 24, 2, 192, cin=48, cout=48)}, vae=vae22(6, 8),
                tr_cases=[(1, 2, 4, 6, [999]), (1, 3, 4, 4, [640]), (2, 2, 2, 4, [81])],
                dec_cases=[(1, 3, 2, 3), (1, 1, 2, 2), (1, 2, 4, 2), (1, 5, 2, 2)], enc_cases=[(1, 1, 32, 64), (1, 5, 32, 32), (1, 9, 64, 32)],
                tiled_cases=[(2, 3, 4, 32, 32, 16), (1, 5, 4, 64, 48, 16)],
                pipelines={
                    "unipc6_cfg5": dict(prompt=P1, negative=NEG, height=64, width=96, frames=17, steps=6, guidance=5.0),
                    "unipc6_cfg5_bf16": dict(prompt=P1, negative=NEG, height=64, width=96, frames=17, steps=6, guidance=5.0, dtype="bfloat16", keep_video=False),
                    "i2v_unipc6_cfg5": dict(cls="i2v", prompt=P1, negative=NEG, height=64, width=96, frames=9, steps=6, guidance=5.0, image=(70, 110)),
                }),
            # Wan2.1 I2V: 36 input channels, CLIP image tokens, added k/v projections
            "wan21-i2v": dict(
                seed=2104, tok=TOK(10, 700), te=te(), shift=3.0, pipe="WanImageToVideoPipeline", text_names=["plain", "empty"],
                clip=clip(), clip_tokens=5, transformers={"transformer": tr(4, 24, 2, 192, cin=36, image_dim=32, added_kv_proj_dim=96)},
                vae=vae21(5), tr_cases=[(1, 2, 4, 6, [999]), (1, 3, 4, 4, [640])], dec_cases=[(1, 2, 4, 4)], enc_cases=[(1, 5, 32, 32)],
                pipelines={"unipc5_cfg5": dict(prompt=P1, negative=NEG, height=48, width=64, frames=9, steps=5, guidance=5.0, image=(60, 90)),
                           "unipc5_cfg5_bf16": dict(prompt=P1, negative=NEG, height=48, width=64, frames=9, steps=5, guidance=5.0, image=(60, 90), dtype="bfloat16", keep_video=False)}),
        },
    },
    # The same kinds of case in 6 MB: one fp32 checkpoint of single files, one bf16 checkpoint of shards.
    "trimmed": {
        "schedulers": dict(
            seed=1000, steps_list=[4, 20],
            unipc={"shift3": dict(flow_shift=3.0), "shift5_order3": dict(flow_shift=5.0, solver_order=3),
                   "shift3_bh1": dict(flow_shift=3.0, solver_type="bh1"),
                   "shift3_nolof": dict(flow_shift=3.0, lower_order_final=False, final_sigmas_type="sigma_min")},
            euler={"shift3": (dict(shift=3.0), {}), "shift5_sigmas": (dict(shift=5.0), {"sigmas": [1.0, 0.75, 0.5, 0.25]})},
            table_steps=[1, 2, 3, 4, 8, 15, 20, 50], shifts=[1.0, 3.0, 5.0, 12.0]),
        "checkpoints": {
            "wan21-t2v": dict(
                seed=3101, tok=TOK(17, 700), te=te(32, 8, 64), plain_index=True, te_dup_embed=True, shift=3.0, text_names=TEXT_A,
                max_lens=(512, 226, 64), transformers={"transformer": tr(4, 12, 2, 96, 32)}, vae=vae21(3),
                tr_cases=[(1, 3, 4, 6, [999]), (2, 1, 6, 4, [250]), (1, 2, 4, 4, [523.7])],
                dec_cases=[(1, 3, 4, 5), (1, 1, 4, 4), (1, 4, 3, 2)], enc_cases=[(1, 1, 32, 16), (1, 9, 16, 24), (1, 13, 16, 8)],
                tiled_cases=[(2, 3, 4, 16, 16, 8), (1, 5, 4, 24, 16, 8)],
                pipelines={
                    "unipc6_cfg5": dict(prompt=P1, negative=NEG, height=32, width=48, frames=9, steps=6, guidance=5.0),
                    "unipc6_cfg5_bf16": dict(prompt=P1, negative=NEG, height=32, width=48, frames=9, steps=6, guidance=5.0,
                                             dtype="bfloat16", keep_video=False),
                    "unipc4_nocfg": dict(prompt=P2, negative=None, height=32, width=32, frames=5, steps=4, guidance=1.0),
                    "unipc20_shift5": dict(prompt="plain", negative=None, height=32, width=16, frames=5, steps=20, guidance=5.0,
                                           scheduler=("unipc", dict(flow_shift=5.0)), keep_preds=False),
                    "euler4": dict(prompt=P1, negative=NEG, height=16, width=32, frames=9, steps=4, guidance=5.0,
                                   scheduler=("euler", dict(shift=3.0))),
                    "euler4_bf16": dict(prompt=P1, negative=NEG, height=16, width=32, frames=9, steps=4, guidance=5.0,
                                        scheduler=("euler", dict(shift=3.0)), dtype="bfloat16", keep_video=False),
                    "one_frame_longprompt": dict(prompt="long", negative=NEG, height=32, width=32, frames=1, steps=4, guidance=3.5),
                }),
            "wan22-a14b": dict(
                seed=3202, tok=TOK(18, 700, style="ws_metaspace"), te=te(24, 8, 48, 2, 3), te_dtype="bfloat16", te_shard="20KB",
                tr_dtype="bfloat16", tr_shard="60KB", shift=3.0, boundary_ratio=0.875, text_names=["plain", "empty", "html", "mixed_unicode"],
                transformers={"transformer": tr(2, 16, 2, 64, 24), "transformer_2": tr(2, 16, 2, 64, 24)},
                # Four channels at least: the norm of two is so small at times that float32 loses 1e-4 of the video.
                vae=dict(vae21(4), dim_mult=[1, 2, 2, 2]), tr_cases=[(1, 2, 4, 6, [999])], dec_cases=[(1, 2, 4, 4)], enc_cases=[(1, 5, 16, 16)], pipelines={}),
        },
    },
}
