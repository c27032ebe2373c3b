#include "shoal/train/data/tokenizer/roles.h"

#include "shoal/runtime/base/error.h"

namespace shoal {

TokenRoles find_roles(const Tokenizer& tokenizer, const RoleNames& names, const std::string& source,
                      const UsualNames& usual) {
  const auto role = [&](const char* key,
                        const std::vector<const char*>& candidates) -> std::optional<TokenId> {
    if (!names.empty()) {
      const auto named = names.find(key);
      if (named == names.end()) return std::nullopt;
      const auto id = tokenizer.token_to_id(named->second);
      if (!id)
        throw_error(ErrorCode::corrupt_data, "{}: {} is '{}', which the tokenizer lacks", source,
                    key, named->second);
      return id;
    }
    for (const char* token : candidates)
      if (const auto id = tokenizer.token_to_id(token)) return id;
    return std::nullopt;
  };
  return {.bos = role("bos_token", usual.bos),
          .eos = role("eos_token", usual.eos),
          .pad = role("pad_token", usual.pad),
          .unk = role("unk_token", usual.unk),
          .mask = role("mask_token", usual.mask),
          .cls = role("cls_token", usual.cls),
          .sep = role("sep_token", usual.sep)};
}

}  // namespace shoal
