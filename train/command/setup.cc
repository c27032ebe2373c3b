#include "shoal/train/command/setup.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>
#include <unistd.h>

#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/command/generated_texts.h"
#include "shoal/train/command/sample_texts.h"
#include "shoal/train/command/stream.h"
#include "shoal/train/data/corruption.h"
#include "shoal/train/data/line_dataset.h"
#include "shoal/train/data/masking.h"
#include "shoal/train/data/packing.h"
#include "shoal/train/data/prepare.h"
#include "shoal/train/data/token_file.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/run/failures.h"
#include "shoal/train/trainer/mesh_check.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal::command {
namespace {

bool is_token_file(const std::string& path) { return path.ends_with(".shoaltok"); }

// `given`: the file that the user named. `path`: the token file, which may have been made from it.
// `packed`: documents that share a block do not attend to each other. Adds the cost of packing to
// the notices.
std::shared_ptr<const Dataset> samples_of(const std::string& path, const std::string& given,
                                          const RunArguments& a, bool packed, RunSetup& setup) {
  auto file = TokenFile::open(open_whole(path, setup.sources));
  if (setup.tokenizer && file->tokenizer_hash() != setup.tokenizer->hash())
    log::warn("{} was made with another tokenizer than the one given", path);
  const std::int64_t vocabulary = setup.task->vocabulary();
  if (setup.kind == TaskKind::masked_lm && a.data.line_by_line)
    return std::make_shared<LineDataset>(std::move(file), setup.tokenizer->sequence_template(),
                                         setup.block_size, vocabulary);
  const bool pads = packed && a.data.packing_strategy != PackingStrategy::wrapped;
  if (!pads && file->tokens() < setup.text_tokens)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} tokens are less than one block of {}", given, file->tokens(),
                            setup.text_tokens),
                "give more text or a smaller block_size");
  if (!packed)
    return std::make_shared<CausalLmDataset>(std::move(file), setup.text_tokens, vocabulary);
  auto blocks = std::make_shared<PackedDataset>(std::move(file),
                                                PackingOptions{.strategy = a.data.packing_strategy,
                                                               .block_size = setup.block_size,
                                                               .vocab_size = vocabulary,
                                                               .pad_id = setup.padding});
  setup.notices.push_back(fmt::format("{}: {}", path, blocks->describe()));
  return blocks;
}

bool packs_evaluation(const DataArguments& data) {
  return data.eval_packing.value_or(data.packing);
}

struct TokenFiles {
  std::string train, validation;
};

// Turns text into token files. The first rank of each host makes them; all ranks get the paths.
TokenFiles token_files(const RunArguments& a, const RunSetup& setup, const World& world,
                       collectives::WatchedStore& ranks, int threads) {
  const Tokenizer* const tokenizer = setup.tokenizer.get();
  const DataArguments& data = a.data;
  TokenFiles files{data.streaming ? "" : data.train_file, data.validation_file};
  const bool train_text = !files.train.empty() && !is_token_file(files.train);
  const bool validation_text = !files.validation.empty() && !is_token_file(files.validation);
  if (!train_text && !validation_text) return files;
  if (tokenizer == nullptr)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is text, and there is no tokenizer",
                            train_text ? files.train : files.validation),
                "give tokenizer_name, or tokens from `shoal data prepare`");
  PrepareOptions options;
  options.inputs = {train_text ? files.train : files.validation};
  if (train_text && validation_text) options.validation_inputs = {files.validation};
  if (train_text && files.validation.empty()) {
    options.validation_fraction = data.validation_split_percentage / 100;
    options.split = PrepareOptions::Split::first;
  }
  set_preparation(options, a, setup, threads);
  std::string answer;
  if (world.local_rank == 0) {
    options.overwrite_cache = data.overwrite_cache;
    options.progress = [&](std::int64_t, std::int64_t) { ranks.progressed(); };
    collectives::WatchedStore::Wait wait(ranks, deadlines::start());
    options.waiting = [&] {
      if (wait.is_over()) wait.give_up("another process of this host prepares the same text");
    };
    try {
      make_writable(data.data_cache_dir.empty() ? "output_dir" : "data_cache_dir",
                    options.output_directory);
      const PreparedData prepared = prepare_data(*tokenizer, options);
      answer = as_text(HostAnswer{world.node, prepared.train.path, prepared.validation.path});
    } catch (const std::exception& problem) {
      answer = as_text(error_of(problem));
    }
  }
  // The other ranks wait while the host's first rank makes progress. If it fails, all ranks fail.
  HostAnswer prepared;
  for (const HostAnswer& answered :
       exchange_answers(world, ranks, "tokens", answer, deadlines::start()))
    if (answered.node == world.node) prepared = answered;
  if (prepared.first.empty())
    throw Error(ErrorCode::corrupt_data,
                fmt::format("no rank of host {} said where its prepared tokens are", world.node),
                "run the same build of Shoal on every rank");
  if (train_text) {
    files.train = prepared.first;
    if (validation_text || !prepared.second.empty()) files.validation = prepared.second;
  } else {
    files.validation = prepared.first;
  }
  return files;
}

// Throws not_found if the directory does not exist. The trainer checks its contents.
void check_resume(const TrainingArguments& a) {
  const std::string& from = a.resume_from_checkpoint;
  if (names_checkpoint(from) && !path_exists(from))
    throw Error(ErrorCode::not_found, fmt::format("resume_from_checkpoint: there is no {}", from),
                "give a checkpoint-N directory, or true for the newest in output_dir");
}

// Refuses options that could have no effect.
void check_is_possible(const RunArguments& a) {
  const bool held_out = !a.data.validation_file.empty() || splits_train_file(a.data);
  SHOAL_CHECK(!a.data.train_file.empty() || !a.training.do_train,
              "train_file is not given; it is text or tokens from `shoal data prepare`");
  SHOAL_CHECK(!splits_train_file(a.data) || !is_token_file(a.data.train_file),
              "validation_split_percentage is {}, but {} is prepared already; give `shoal data "
              "prepare` a --validation-fraction, and its file as validation_file",
              a.data.validation_split_percentage, a.data.train_file);
  SHOAL_CHECK(held_out || a.training.eval_strategy == Interval::no,
              "eval_strategy asks for evaluation, but there is no validation set; give "
              "validation_file or validation_split_percentage");
  SHOAL_CHECK(held_out || !a.training.eval_on_start,
              "eval_on_start asks for evaluation, but there is no validation set; give "
              "validation_file or validation_split_percentage");
  if (a.training.do_train) {
    check_output_directory(a.training);
    return check_resume(a.training);
  }
  SHOAL_CHECK((held_out && a.training.do_eval) || a.training.do_predict,
              "there is nothing to do: do_train is false, and there is {}",
              a.training.do_eval ? "no validation_file" : "no do_eval or do_predict either");
  const std::string& resume = a.training.resume_from_checkpoint;
  if (!resume.empty() && resume != "false")
    throw Error(ErrorCode::invalid_argument,
                "resume_from_checkpoint continues training, but do_train is false",
                "to evaluate a checkpoint, give it as --model_name_or_path");
}

struct GivenOption {
  const char* name;
  bool is_given;
  std::vector<TaskKind> tasks;  // the tasks that have the option
};

// MNLI's mismatched set requires the matched one.
void check_mismatched(const RunArguments& a) {
  const DataArguments& data = a.data;
  for (const auto& [name, file, beside, first] :
       {std::tuple{"validation_mismatched_file", &data.validation_mismatched_file,
                   "validation_file", &data.validation_file},
        {"test_mismatched_file", &data.test_mismatched_file, "test_file", &data.test_file}}) {
    if (file->empty()) continue;
    SHOAL_CHECK(data.task_name == "mnli",
                "{} is given, but task_name is '{}': MNLI alone has a part of other genres", name,
                data.task_name);
    SHOAL_CHECK(!first->empty(), "{} is given without {}, beside which it is used", name, beside);
  }
}

void check_packing(const DataArguments& data) {
  SHOAL_CHECK(
      data.packing_strategy == PackingStrategy::bfd || data.packing || packs_evaluation(data),
      "packing_strategy is {}, but packing is false", to_string(data.packing_strategy));
  SHOAL_CHECK(!data.packing || !data.streaming,
              "packing needs to know all documents, which a stream does not; give prepared tokens "
              "as train_file, or leave packing out");
}

// The options of some tasks only.
std::vector<GivenOption> options_of_tasks(const RunArguments& a) {
  using enum TaskKind;
  const std::vector<TaskKind> pairs = {summarization, translation};
  const std::vector<TaskKind> rows = {text_classification};
  const std::vector<TaskKind> rows_or_tags = {text_classification, token_classification};
  const std::vector<TaskKind> samples = {text_classification, question_answering,
                                         token_classification, summarization, translation};
  const DataArguments& data = a.data;
  return {
      {"test_file", !data.test_file.empty(), samples},
      {"validation_mismatched_file", !data.validation_mismatched_file.empty(), rows},
      {"test_mismatched_file", !data.test_mismatched_file.empty(), rows},
      {"label_list", !data.label_list.empty(), rows_or_tags},
      {"do_predict", a.training.do_predict, samples},
      {"task_name", !data.task_name.empty(), rows_or_tags},
      {"column_names",
       !data.column_names.empty(),
       {text_classification, summarization, translation}},
      {"text_column_names", !data.text_column_names.empty(), rows_or_tags},
      {"version_2_with_negative", data.version_2_with_negative, {question_answering}},
      {"add_special_tokens false", !data.add_special_tokens, {causal_lm}},
      {"packing", data.packing, {causal_lm}},
      {"eval_packing", packs_evaluation(data), {causal_lm}},
      {"mean_noise_span_length", data.mean_noise_span_length.has_value(), {span_corruption}},
      {"poisson_lambda", data.poisson_lambda.has_value(), {denoising}},
      {"permute_sentence_ratio", data.permute_sentence_ratio.has_value(), {denoising}},
      {"mlm_probability",
       data.mlm_probability.has_value(),
       {masked_lm, span_corruption, denoising}},
      {"whole_word_mask", data.whole_word_mask, {masked_lm}},
      {"line_by_line", data.line_by_line, {masked_lm}},
      {"label_all_tokens", data.label_all_tokens, {token_classification}},
      {"return_entity_level_metrics", data.return_entity_level_metrics, {token_classification}},
      {"text_column", !data.text_column.empty(), {summarization}},
      {"summary_column", !data.summary_column.empty(), {summarization}},
      {"lang", !data.lang.empty(), {summarization}},
      {"source_lang", !data.source_lang.empty(), {translation}},
      {"target_lang", !data.target_lang.empty(), {translation}},
      {"source_prefix", !data.source_prefix.empty(), pairs},
      {"max_source_length", data.max_source_length.has_value(), pairs},
      {"max_target_length", data.max_target_length != DataArguments{}.max_target_length, pairs},
      {"val_max_target_length", data.val_max_target_length.has_value(), pairs},
      {"forced_bos_token", !data.forced_bos_token.empty(), pairs},
      {"predict_with_generate", a.training.predict_with_generate.value_or(false), pairs},
      {"generation_max_length", a.training.generation_max_length.has_value(), pairs},
      {"generation_num_beams", a.training.generation_num_beams.has_value(), pairs},
      {"sample_prompts", !a.training.sample_prompts.empty(), {causal_lm}},
      {"sample_texts",
       a.training.sample_texts.value_or(0) > 0,
       {causal_lm, summarization, translation}},
      {"sample_max_new_tokens",
       a.training.sample_max_new_tokens != TrainingArguments{}.sample_max_new_tokens,
       {causal_lm}},
  };
}

// Refuses options of other tasks, and requires those of this task.
void check_data(const RunArguments& a, TaskKind kind) {
  using enum TaskKind;
  const DataArguments& data = a.data;
  for (const GivenOption& given : options_of_tasks(a))
    if (given.is_given &&
        std::find(given.tasks.begin(), given.tasks.end(), kind) == given.tasks.end()) {
      std::vector<std::string_view> names;
      for (const TaskKind task : given.tasks) names.push_back(to_string(task));
      if (given.name == std::string_view("test_file"))
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("a model for {} has no labels to predict", to_string(kind)),
                    fmt::format("`shoal evaluate` measures its loss, `shoal generate` continues a "
                                "text; for another head give --task {}",
                                fmt::join(names, " or ")));
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is given, but the task is {}", given.name, to_string(kind)),
                  fmt::format("give --task {}", fmt::join(names, " or ")));
    }
  check_packing(data);
  check_sample_options(a, kind);
  if (reads_text(kind)) return;
  if (learns_pairs(kind)) check_pairs(a);
  SHOAL_CHECK(kind != question_answering || !splits_train_file(data),
              "validation_split_percentage is of text and rows; give the questions to validate as "
              "validation_file");
  SHOAL_CHECK(!a.training.do_predict || !data.test_file.empty(), "do_predict needs a test_file");
  SHOAL_CHECK(
      kind != text_classification || data.task_name.empty() ||
          (data.column_names.empty() && data.text_column_names.empty() && data.label_list.empty()),
      "task_name {} has its own columns and classes; leave column_names, text_column_names and "
      "label_list out",
      data.task_name);
  check_mismatched(a);
}

// Refuses an unknown metric now instead of at the first evaluation.
void check_metric(const RunArguments& a, const RunSetup& setup) {
  std::string name = a.training.metric_for_best_model;
  if (name.starts_with("eval_")) name = name.substr(5);
  std::vector<std::string> names = {"loss"};
  if (setup.task->predicts_tokens()) names.emplace_back("perplexity");
  if (setup.samples)
    for (std::string& metric : setup.samples->metric_names()) names.push_back(std::move(metric));
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("metric_for_best_model '{}' is not computed", a.training.metric_for_best_model),
        fmt::format("use one of {}", fmt::join(names, ", ")));
}

std::shared_ptr<const Tokenizer> tokenizer_of(const RunArguments& a, const ChosenModel& model) {
  const std::string path =
      !a.model.tokenizer_name.empty() ? a.model.tokenizer_name : model.tokenizer;
  const bool text = (!a.data.train_file.empty() && !is_token_file(a.data.train_file)) ||
                    (!a.data.validation_file.empty() && !is_token_file(a.data.validation_file)) ||
                    model.kind != TaskKind::causal_lm;
  if (!a.model.tokenizer_name.empty() || text) return path.empty() ? nullptr : load_tokenizer(path);
  return !path.empty() && has_tokenizer(path) ? load_tokenizer(path) : nullptr;
}

// Returns the line for the log.
std::string add_adapters(nn::Module& model, const nn::LoraOptions& lora) {
  const std::size_t layers = nn::add_lora(model, lora).size();
  std::int64_t trained = 0, all = 0;
  for (const nn::Parameter* parameter : model.parameters()) {
    const std::int64_t count = parameter->shape().count();
    all += count;
    if (parameter->trainable()) trained += count;
  }
  return fmt::format("LoRA: adapters of {} layers; {} of {} parameters are trained ({:.2f} %)",
                     layers, trained, all,
                     100 * static_cast<double>(trained) / static_cast<double>(all));
}

std::int64_t block_size_of(const RunArguments& a, const Task& task, TaskKind kind) {
  const std::int64_t usual =
      kind == TaskKind::question_answering                                              ? 384
      : kind == TaskKind::span_corruption                                               ? 512
      : kind == TaskKind::text_classification || kind == TaskKind::token_classification ? 128
                                                                                        : 1024;
  const char* const option = learns_pairs(kind) ? "max_source_length" : "block_size";
  const auto& given = learns_pairs(kind) ? a.data.max_source_length : a.data.block_size;
  const std::int64_t size = given.value_or(std::min(usual, task.positions()));
  if (size > task.positions())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is {}, but the model has {} positions", option, size, task.positions()),
        fmt::format("use --{} {} or fewer", option, task.positions()));
  return size;
}

// Targets are short, so they are padded less.
std::int64_t target_multiple(const DataArguments& data) {
  if (data.pad_to_max_length) return data.max_target_length;
  return data.pad_to_multiple_of > 0 ? data.pad_to_multiple_of : 8;
}

std::uint64_t seed_of_masks(const RunArguments& a) {
  return static_cast<std::uint64_t>(a.training.order_seed());
}

SpanCorruptionOptions span_corruption_of(const RunArguments& a) {
  SpanCorruptionOptions options{.seed = seed_of_masks(a)};
  options.noise_density = a.data.mlm_probability.value_or(options.noise_density);
  options.mean_noise_span_length =
      a.data.mean_noise_span_length.value_or(options.mean_noise_span_length);
  return options;
}

DenoisingOptions denoising_of(const RunArguments& a) {
  DenoisingOptions options{.seed = seed_of_masks(a)};
  options.mask_ratio = a.data.mlm_probability.value_or(options.mask_ratio);
  options.poisson_lambda = a.data.poisson_lambda.value_or(options.poisson_lambda);
  options.permute_sentence_ratio =
      a.data.permute_sentence_ratio.value_or(options.permute_sentence_ratio);
  return options;
}

// Where text is corrupted for an encoder-decoder; null for other tasks.
std::shared_ptr<const Collator> corrupting_collator(const RunArguments& a, const RunSetup& setup,
                                                    const CorruptedPadding& padding) {
  if (setup.kind == TaskKind::span_corruption) {
    SpanCorruptionOptions options = span_corruption_of(a);
    options.padding = {.inputs = padding.targets, .targets = padding.targets};  // lengths are equal
    return std::make_shared<SpanCorruptionCollator>(*setup.tokenizer, setup.text_tokens, options);
  }
  if (setup.kind != TaskKind::denoising) return nullptr;
  DenoisingOptions options = denoising_of(a);
  options.padding = padding;
  return std::make_shared<DenoisingCollator>(*setup.tokenizer, options);
}

std::shared_ptr<const Collator> collator_of(const RunArguments& a, const RunSetup& setup,
                                            bool on_cpu) {
  const std::int64_t automatic = on_cpu ? 32 : 8;
  const std::int64_t multiple = a.data.pad_to_max_length        ? setup.block_size
                                : a.data.pad_to_multiple_of > 0 ? a.data.pad_to_multiple_of
                                                                : automatic;
  // With sequence parallelism, ranks share a batch's positions, so tp must divide their number.
  const parallel::ParallelPlan plan =
      a.training.model_parallel ? a.training.model_parallel->plan : parallel::ParallelPlan{};
  const bool shares = plan.tensor.prescaled_batch && !plan.tensor.speed;
  const std::int64_t ranks = shares ? plan.mesh.tensor : 1;
  const std::int64_t even = std::lcm(multiple, ranks);
  // Blocks all have the same length and need no padding.
  const bool blocks = setup.kind == TaskKind::causal_lm ||
                      (setup.kind == TaskKind::masked_lm && !a.data.line_by_line);
  const std::int64_t pads = blocks ? 1 : std::min(even, setup.block_size);
  if (setup.kind == TaskKind::masked_lm)
    return std::make_shared<MaskingCollator>(
        *setup.tokenizer,
        MaskingOptions{.seed = seed_of_masks(a),
                       .probability = a.data.mlm_probability.value_or(MaskingOptions{}.probability),
                       .whole_words = a.data.whole_word_mask,
                       .pad_to_multiple_of = pads});
  if (auto corrupting = corrupting_collator(a, setup, {.inputs = pads, .targets = ranks}))
    return corrupting;
  if (setup.samples)
    return std::make_shared<PaddingCollator>(setup.padding, pads, setup.samples->labels_of(),
                                             std::lcm(target_multiple(a.data), ranks));
  return std::make_shared<PaddingCollator>();
}

}  // namespace

bool splits_train_file(const DataArguments& data) {
  return data.validation_split_percentage > 0 && data.validation_file.empty() &&
         !data.train_file.empty();
}

bool names_checkpoint(const std::string& resume_from_checkpoint) {
  constexpr std::array kWords = {"", "true", "True", "1", "false", "False", "0"};
  return std::ranges::find(kWords, resume_from_checkpoint) == kWords.end();
}

void make_writable(const char* option, const std::string& directory) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} {}: {}", option, directory, why),
                "choose another directory, or see that this one can be made and written");
  };
  if (const auto reason = reason_not_made(directory)) refuse(*reason);
  if (::access(directory.c_str(), W_OK | X_OK) != 0) refuse(std::generic_category().message(errno));
}

RunSetup set_up_run(const RunArguments& a, const World& world, bool on_cpu,
                    const AddSources& add_sources) {
  RunSetup setup;
  add_sources(setup.sources);
  check_is_possible(a);
  ChosenModel model = choose_model(a.model);
  setup.kind = model.kind;
  setup.initial_weights = model.initial_weights;
  setup.model_files = model.files;
  check_data(a, model.kind);
  check_streaming(a);
  check_one_file(a, model.kind, setup.sources);
  setup.tokenizer = tokenizer_of(a, model);
  if (!setup.tokenizer && model.kind != TaskKind::causal_lm)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} needs a tokenizer, and there is none", to_string(model.kind)),
                "give tokenizer_name: a directory, a tokenizer.json or a vocab.txt");
  if (setup.tokenizer && model.takes_vocabulary) take_vocabulary(model, *setup.tokenizer);
  if (setup.tokenizer) setup.padding = take_padding(model, *setup.tokenizer, setup.notices);
  setup.samples = make_task_data(model.kind, a.data, model.config, setup.tokenizer,
                                 generates_texts(a, model.kind));
  if (setup.samples) setup.samples->name_labels(model.config);
  setup.task = make_task(model.kind, model.config, model.source, setup.tokenizer,
                         {.gradient_checkpointing = a.training.gradient_checkpointing});
  if (model.lora) {
    setup.task->keep_files_of(model.files);
    std::string line = add_adapters(setup.task->module(), *model.lora);
    if (a.training.do_train) setup.notices.push_back(std::move(line));
  }
  setup.generation = generation_of(a, setup);
  setup.sample_texts = sample_prompts(a, setup);
  check_metric(a, setup);
  setup.text_tokens = setup.block_size = block_size_of(a, *setup.task, model.kind);
  if (model.kind == TaskKind::span_corruption)
    setup.text_tokens = span_corruption_lengths(setup.block_size, span_corruption_of(a)).tokens;
  setup.collator = collator_of(a, setup, on_cpu);
  if (a.training.model_parallel)
    check_mesh(a.training, *setup.task->chain(), world.size, setup.block_size);
  return setup;
}

void open_data(const RunArguments& a, const World& world, collectives::WatchedStore& ranks,
               int threads, RunSetup& setup) {
  const DataArguments& data = a.data;
  if (setup.samples) {
    const int workers = data.preprocessing_num_workers > 0
                            ? static_cast<int>(data.preprocessing_num_workers)
                            : threads;
    const auto open = [&](const std::string& path, bool may_lack_answers,
                          std::optional<std::int64_t> limit) {
      return path.empty() ? nullptr
                          : setup.samples->open({.path = path,
                                                 .tokenizer = setup.tokenizer,
                                                 .max_length = setup.block_size,
                                                 .may_lack_answers = may_lack_answers,
                                                 .trains = path == data.train_file,
                                                 .limit = limit,
                                                 .threads = workers},
                                                setup.notices);
    };
    if (a.training.do_train && data.streaming) setup.train_shards = stream_of(a, setup, world);
    if (splits_train_file(data)) {
      auto [training, validation] =
          split_rows(open(data.train_file, false, std::nullopt), data, setup.notices);
      if (a.training.do_train)
        setup.train_dataset = first_samples(std::move(training), data.max_train_samples);
      setup.eval_dataset = first_samples(std::move(validation), data.max_eval_samples);
    } else {
      if (a.training.do_train && !data.streaming)
        setup.train_dataset = open(data.train_file, false, data.max_train_samples);
      setup.eval_dataset = open(data.validation_file, false, data.max_eval_samples);
    }
    if (a.training.do_eval)
      setup.eval_mismatched = open(data.validation_mismatched_file, false, data.max_eval_samples);
    if (!a.training.do_predict) return;
    setup.test_dataset = open(data.test_file, true, data.max_predict_samples);
    setup.test_mismatched = open(data.test_mismatched_file, true, data.max_predict_samples);
    return;
  }
  const TokenFiles files = token_files(a, setup, world, ranks, available_cores());
  if (!files.train.empty())
    setup.train_dataset = first_samples(
        samples_of(files.train, "train_file " + data.train_file, a, data.packing, setup),
        data.max_train_samples);
  if (data.streaming && a.training.do_train) setup.train_shards = stream_of(a, setup, world);
  if (!files.validation.empty())
    setup.eval_dataset = first_samples(
        samples_of(files.validation,
                   data.validation_file.empty()
                       ? fmt::format("validation_split_percentage {} of {}",
                                     data.validation_split_percentage, data.train_file)
                       : "validation_file " + data.validation_file,
                   a, packs_evaluation(data), setup),
        data.max_eval_samples);
}

}  // namespace shoal::command
