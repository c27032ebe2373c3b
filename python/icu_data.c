/* ICU's data for the wheel: of 31 MB, the 0.5 MB that tokenizers use. */
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    ".global " ENTRY "\n"
    ".type " ENTRY ", @object\n" ENTRY ":\n"
    ".incbin \"" DATA "\"\n"
    ".size " ENTRY ", . - " ENTRY "\n"
    ".text\n");
