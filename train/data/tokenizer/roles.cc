#include "shoal/train/data/tokenizer/roles.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal {

const std::vector<const char*>& role_names() {
  static const std::vector<const char*> names = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                 "pad_token", "cls_token", "mask_token"};
  return names;
}

NamedTokens named_or(const NamedTokens& named, const NamedTokens& usual) {
  NamedTokens all;
  for (const char* role : role_names())
    for (const NamedTokens* tokens : {&named, &usual}) {
      const auto found =
          std::ranges::find_if(*tokens, [&](const auto& token) { return token.first == role; });
      if (found == tokens->end()) continue;
      all.push_back(*found);
      break;
    }
  return all;
}

StatedTokens with_roles(StatedTokens stated, const NamedTokens& named) {
  std::set<std::string_view> special;
  for (const auto& [role, token] : named) special.insert(token.content);
  for (auto& [token, id] : stated) token.special |= special.contains(token.content);
  return stated;
}

RoleNames names_of(const NamedTokens& tokens) {
  RoleNames names;
  for (const auto& [role, token] : tokens) names[role] = token.content;
  return names;
}

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
                    key, shortened(named->second));
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
