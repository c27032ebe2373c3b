#include "shoal/sagemaker/rest/credentials.h"

#include <typeinfo>

#include <openssl/crypto.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::sagemaker {

Secret& Secret::operator=(const Secret& other) {
  if (this != &other) {
    wipe();
    value_ = other.value_;
  }
  return *this;
}
Secret::Secret(Secret&& other) noexcept : value_(std::move(other.value_)) { other.wipe(); }
Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    wipe();
    value_ = std::move(other.value_);
    other.wipe();
  }
  return *this;
}
Secret::~Secret() { wipe(); }

void Secret::wipe() noexcept {
  // Wipes the whole capacity: short texts are in the object itself, and a move leaves them there.
  OPENSSL_cleanse(value_.data(), value_.capacity());
  value_.clear();
}

CredentialProvider::CredentialProvider(std::vector<CredentialSource> sources, Now now)
    : sources_(std::move(sources)), now_(std::move(now)) {}

CredentialProvider::CredentialProvider(Credentials credentials)
    : now_(std::chrono::system_clock::now), current_(std::move(credentials)) {}

std::optional<Credentials> CredentialProvider::ask(const CredentialSource& source) const {
  try {
    return source();
  } catch (const Error& error) {
    // Network and service errors already carry their kind.
    if (!is_chosen_ || typeid(error) != typeid(Error)) throw;
    throw CredentialsError(error.code(), error.message(), error.remedy(), /*may_pass=*/true);
  }
}

Credentials CredentialProvider::fetch() {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    auto found = ask(sources_[i]);
    if (!found) continue;
    // From now on use only this source: a failing refresh must not switch to other keys.
    const CredentialSource chosen = sources_[i];
    sources_ = {chosen};
    is_chosen_ = true;
    log::debug("AWS credentials: {}, access key {}", found->source, found->access_key);
    return *std::move(found);
  }
  // The metadata service's source returns nullopt without an answer, so this can be an outage.
  if (is_chosen_)
    throw CredentialsError(
        ErrorCode::not_found,
        fmt::format("no AWS credentials any more: {} gave some before, and gives "
                    "none now",
                    current_ ? current_->source : "their source"),
        {}, /*may_pass=*/true);
  throw Error(ErrorCode::not_found,
              "no AWS credentials: not in the environment, in no profile, and no container or "
              "instance gives any",
              "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE or --profile to a "
              "profile of ~/.aws/config");
}

Credentials CredentialProvider::get() {
  using namespace std::chrono_literals;
  const std::lock_guard lock(mutex_);
  if (!current_) {
    current_ = fetch();
  } else if (const Moment now = now_();
             current_->expires && !sources_.empty() && *current_->expires - now < 15min) {
    const bool must = *current_->expires - now < 10min;
    // Without this limit, every request of every thread would wait for a source that is down.
    if (!must && now < not_before_) return *current_;
    try {
      current_ = fetch();
    } catch (const Error& error) {
      if (must) throw;
      not_before_ = now + 1min;
      log::warn("AWS credentials ({}) expire soon and cannot be renewed yet: {}", current_->source,
                error.what());
    }
  }
  return *current_;
}

bool CredentialProvider::renew(const Credentials& rejected) {
  const std::lock_guard lock(mutex_);
  const auto same = [&](const Credentials& other) {
    return other.access_key == rejected.access_key &&
           other.session_token.reveal() == rejected.session_token.reveal();
  };
  if (current_ && !same(*current_)) return true;  // renewed by another thread
  if (sources_.empty()) return false;
  Credentials fresh = fetch();
  const bool changed = !same(fresh);
  current_ = std::move(fresh);
  return changed;
}

}  // namespace shoal::sagemaker
