#include "shoal/sagemaker/job/source.h"

#include <algorithm>
#include <filesystem>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/runtime/io/shown_path.h"
#include "shoal/sagemaker/process/process.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;

std::string last_line(const std::string& text) {
  const auto end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "nothing said";
  const auto begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

void run_tool(const std::vector<std::string>& words, const ProcessOptions& options,
              const SourceCode& code, const std::string& what) {
  const ProcessResult result = run_process(words, options);
  if (result.status != 0)
    throw Error(ErrorCode::io,
                fmt::format("{}: {} (exit status {})", what,
                            without_secrets(last_line(result.error), code), result.status));
}

// As in the SDK, a token takes the place of the user name. Only https carries credentials.
std::vector<std::string> git_environment(const GitSource& git) {
  std::vector<std::string> all = {"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true"};
  std::string basic;
  if (!git.token.empty())
    basic = git.token + ":";
  else if (!git.username.empty() && !git.password.empty())
    basic = git.username + ":" + git.password;
  if (basic.empty() || !git.repository.starts_with("https://")) return all;
  // The header is limited to this host, so that a redirection to another host does not get the
  // credentials.
  const auto path = git.repository.find('/', std::string("https://").size());
  all.emplace_back("GIT_CONFIG_COUNT=1");
  all.push_back("GIT_CONFIG_KEY_0=http." + git.repository.substr(0, path) + "/.extraHeader");
  all.push_back("GIT_CONFIG_VALUE_0=Authorization: Basic " + to_base64(basic));
  return all;
}

void clone(const SourceCode& code, const std::string& directory) {
  const GitSource& git = *code.git;
  const ProcessOptions options{.environment = git_environment(git)};
  const auto run = [&](std::vector<std::string> words, const std::string& what) {
    words.insert(words.begin(), "git");
    run_tool(words, options, code, what);
  };
  std::vector<std::string> words = {"clone", "--quiet"};
  if (!git.branch.empty()) words.insert(words.end(), {"--branch", git.branch});
  words.insert(words.end(), {"--", git.repository, directory});
  run(words, fmt::format("git clone of {}", git.repository));
  if (!git.commit.empty())
    run({"-C", directory, "checkout", "--quiet", "--detach", git.commit},
        fmt::format("git checkout of {}", git.commit));
}

std::string joined(const std::string& directory, const std::string& path) {
  return directory.empty() ? path : (fs::path(directory) / path).string();
}

// Names in a directory, sorted, without .git.
std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : list_directory(directory))
    if (entry.name != ".git") names.push_back(entry.name);
  return names;
}

// The archive contains the targets of links. The repository is not trusted, so its links must not
// pull in files of this machine.
void check_links(const std::string& clone) {
  const fs::path root = canonical_path(clone);
  for (const DirectoryEntry& entry : list_tree(root)) {
    if (!entry.is_link || entry.name.starts_with(".git/")) continue;
    const fs::path target = canonical_path(entry.path);
    if (std::ranges::mismatch(root, target).in1 != root.end())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("git_config: {} in the repository is a link to what is outside of it",
                              entry.name),
                  "clone it yourself, look where the link leads, and give source_dir");
  }
}

// Reports a path that is absent, cannot be accessed, or is of none of these kinds (for example a
// pipe or a device).
bool check_path(std::string_view field, const std::string& path,
                std::initializer_list<FileKind> kinds, Problems& problems) {
  const bool file = std::ranges::find(kinds, FileKind::regular) != kinds.end();
  const bool folder = std::ranges::find(kinds, FileKind::directory) != kinds.end();
  const std::string shown = shown_path(path);
  try {
    const FileKind kind = file_kind(path);
    if (std::ranges::find(kinds, kind) != kinds.end()) return true;
    if (kind == FileKind::absent)
      problems.add(field, fmt::format("there is no {} {}",
                                      !folder ? "file"
                                      : !file ? "directory"
                                              : "file or directory",
                                      shown));
    else
      problems.add(field, fmt::format("{} is {}", shown,
                                      !folder ? "not a regular file"
                                      : !file ? "not a directory"
                                              : "neither a regular file nor a directory"));
  } catch (const Error& error) {
    problems.add(field, error.what());
  }
  return false;
}

void check_paths(const SourceCode& code, const std::string& directory, Problems& problems) {
  const std::string source = joined(directory, code.source_dir);
  if (code.source_dir.empty() || check_path("/source_dir", source, {FileKind::directory}, problems))
    check_path("/entry_point",
               joined(code.source_dir.empty() ? directory : source, code.entry_point),
               {FileKind::regular}, problems);
  for (const std::string& path : code.dependencies)
    check_path("/dependencies", joined(directory, path), {FileKind::regular, FileKind::directory},
               problems);
}

}  // namespace

std::string without_secrets(std::string text, const SourceCode& code) {
  if (!code.git) return text;
  for (const std::string& secret : {code.git->token, code.git->password})
    for (auto at = text.find(secret); !secret.empty() && at != std::string::npos;
         at = text.find(secret, at + 3))
      text.replace(at, secret.size(), "***");
  return text;
}

void check_source(const SourceCode& code, const std::string& directory, Problems& problems) {
  if (!code.git) check_paths(code, directory, problems);
}

void pack_source(const SourceCode& code, const std::string& directory, const std::string& archive) {
  const ScratchDirectory scratch;
  std::string from = directory;
  if (code.git) {
    from = scratch.path() + "/clone";
    clone(code, from);
    check_links(from);
  }
  Problems problems;
  check_paths(code, from, problems);
  problems.check();
  // Entries as {parent directory, name}; the archive contains the name.
  std::vector<std::pair<std::string, std::string>> entries;
  if (code.source_dir.empty()) {
    const fs::path file = joined(from, code.entry_point);
    entries.emplace_back(file.parent_path().string(), file.filename().string());
  } else {
    const std::string source = joined(from, code.source_dir);
    for (const std::string& name : names_in(source)) entries.emplace_back(source, name);
  }
  for (const std::string& path : code.dependencies) {
    const fs::path whole = fs::path(joined(from, path)).lexically_normal();
    const fs::path last = whole.has_filename() ? whole : whole.parent_path();
    entries.emplace_back(last.parent_path().string(), last.filename().string());
  }
  std::vector<std::string> words = {"tar",           "--create",
                                    "--force-local",  // allows ':' in the path
                                    "--file",        archive,           "--use-compress-program",
                                    "gzip -n -9",    "--format=gnu",    "--sort=name",
                                    "--dereference", "--mtime=@0",      "--owner=0",
                                    "--group=0",     "--numeric-owner", "--mode=u+rwX,go+rX,go-w",
                                    "--exclude=.git"};
  for (const auto& [folder, name] : entries) {
    const std::string absolute = fs::absolute(folder.empty() ? "." : folder).string();
    words.insert(words.end(), {"--directory", absolute, "--add-file", name});
  }
  run_tool(words, {.environment = {"TAR_OPTIONS=", "LC_ALL=C"}}, code, "tar");
}

}  // namespace shoal::sagemaker
