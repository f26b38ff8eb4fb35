/* Every tool-call dialect, sorted: DIALECT(name of the descriptor). */
DIALECT(dialect_qwen_json)
DIALECT(dialect_qwen_xml)
