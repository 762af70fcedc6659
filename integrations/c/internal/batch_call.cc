#include "integrations/c/internal/batch_call.h"

#include <algorithm>

#include "integrations/c/internal/last_error.h"

namespace ems::capi {

ems_status Tally::Add(const Status& status) {
  if (status.ok()) {
    ++ok_;
  } else if (status.code() == StatusCode::kNotFound) {
    ++missed_;
  } else if (failed_.ok()) {
    failed_ = status;
    failed_at_ = at_;
  }
  ++at_;
  return CodeOf(status);
}

Outcome Tally::Finish() const {
  if (!failed_.ok()) {
    return {.status = Error(failed_.code(), "item {} of {}: {}", failed_at_, at_, Message(failed_)),
            .value = ok_};
  }
  return {.status = missed_ > 0 ? Miss() : OkStatus(), .value = ok_};
}

Result<std::unique_ptr<BatchCall>> BatchCall::Make(Client* client, BatchKind kind,
                                                   const BatchArguments& arguments, bool own) {
  std::unique_ptr<BatchCall> call(new BatchCall(client, kind, arguments));
  if (Status good = call->Check(arguments, own); !good.ok()) {
    if (arguments.count <= EMS_BATCH_MAX) call->Refuse(CodeOf(good));
    return good;
  }
  return call;
}

Status BatchCall::Check(const BatchArguments& arguments, bool own) {
  EMS_RETURN_IF_ERROR(NotNull(arguments.items, "items"));
  EMS_RETURN_IF_ERROR(InRange(count_, 1, EMS_BATCH_MAX, "count"));
  EMS_ASSIGN_OR_RETURN(choice_, ToCallChoice(arguments.options));
  size_t text_bytes = choice_.get.route_key.size();
  size_t pieces = 0;
  for (size_t i = 0; i < count_; ++i) {
    const ems_item& item = arguments.items[i];
    const auto in_item = [i](const Status& why) {
      return Prefixed(why, fmt::format("item {}", i));
    };
    const Result<std::string_view> key = ToKey(item.key, item.key_size);
    if (!key.ok()) return in_item(key.status());
    text_bytes += key->size();
    if (!has_values()) continue;
    const Result<uint64_t> bytes = CheckPieces(&item.value, "value");
    if (!bytes.ok()) return in_item(bytes.status());
    bytes_ += *bytes;
    pieces += item.value.count;
  }
  if (own) text_.reserve(text_bytes);
  (kind_ == BatchKind::kPut   ? puts_.reserve(count_)
   : kind_ == BatchKind::kGet ? gets_.reserve(count_)
                              : keys_.reserve(count_));
  if (kind_ == BatchKind::kPut) const_parts_.reserve(pieces);
  if (kind_ == BatchKind::kGet) mutable_parts_.reserve(pieces);
  choice_.put.route_key = choice_.get.route_key = Keep(choice_.get.route_key, own);
  for (size_t i = 0; i < count_; ++i) {
    const ems_item& item = arguments.items[i];
    AddItem(Keep({static_cast<const char*>(item.key), item.key_size}, own), item.value);
  }
  return OkStatus();
}

std::string_view BatchCall::Keep(std::string_view text, bool own) {
  if (!own || text.empty()) return text;
  const size_t at = text_.size();
  text_.insert(text_.end(), text.begin(), text.end());
  return {text_.data() + at, text.size()};
}

void BatchCall::AddItem(std::string_view key, const ems_pieces& value) {
  const std::string_view route = choice_.get.route_key;
  // One piece travels as such: only then can it be known for staging memory.
  if (kind_ == BatchKind::kPut) {
    const size_t at = const_parts_.size();
    AppendParts(value, &const_parts_);
    const auto parts = std::span<const ConstBytes>(const_parts_).subspan(at);
    puts_.push_back({.key = key,
                     .value = parts.size() == 1 ? ConstBuffers(parts[0]) : ConstBuffers(parts),
                     .route_key = route});
  } else if (kind_ == BatchKind::kGet) {
    const size_t at = mutable_parts_.size();
    AppendParts(value, &mutable_parts_);
    const auto parts = std::span<const MutableBytes>(mutable_parts_).subspan(at);
    gets_.push_back({.key = key,
                     .into = parts.size() == 1 ? MutableBuffers(parts[0]) : MutableBuffers(parts),
                     .route_key = route});
  } else {
    keys_.push_back({.key = key, .route_key = route});
  }
}

void BatchCall::Tell(size_t i, const Status& status, uint64_t length, Tally* tally) {
  const ems_status code = tally->Add(status);
  if (codes_ != nullptr) codes_[i] = code;
  if (lengths_ != nullptr) lengths_[i] = length;
}

Outcome BatchCall::Run(Duration timeout) {
  choice_.SetTimeout(timeout);
  Tally tally;
  switch (kind_) {
    case BatchKind::kPut: {
      const std::vector<Status> results = client_->MultiPut(puts_, choice_.put);
      for (size_t i = 0; i < count_; ++i) Tell(i, results[i], 0, &tally);
      break;
    }
    case BatchKind::kGet: {
      const std::vector<Result<uint64_t>> results = client_->MultiGet(gets_, choice_.get);
      for (size_t i = 0; i < count_; ++i) {
        Tell(i, results[i].status(), results[i].ok() ? *results[i] : 0, &tally);
      }
      break;
    }
    case BatchKind::kExists: {
      const std::vector<Result<bool>> results = client_->MultiExists(keys_, choice_.get);
      for (size_t i = 0; i < count_; ++i) {
        const Result<bool>& result = results[i];
        Tell(i, result.ok() && !*result ? Miss() : result.status(), 0, &tally);
      }
      break;
    }
    case BatchKind::kRemove: {
      const std::vector<Status> results = client_->MultiRemove(keys_, choice_.get);
      for (size_t i = 0; i < count_; ++i) Tell(i, results[i], 0, &tally);
      break;
    }
  }
  return tally.Finish();
}

void BatchCall::Refuse(ems_status code) noexcept {
  if (codes_ != nullptr) std::fill_n(codes_, count_, code);
  if (lengths_ != nullptr) std::fill_n(lengths_, count_, uint64_t{0});
}

}  // namespace ems::capi
