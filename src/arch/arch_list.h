/* Every architecture, sorted: ARCH(name of the descriptor). */
ARCH(arch_qwen3_5_moe)
ARCH(arch_qwen3_moe)
ARCH(arch_qwen3_next)
