#include "integrations/c/internal/batch_call.h"

#include <algorithm>

#include "common/check.h"
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

Result<std::unique_ptr<BatchCall>> BatchCall::Make(const ClientCore* core, BatchKind kind,
                                                   const BatchArguments& arguments, bool own) {
  std::unique_ptr<BatchCall> call(new BatchCall(core, kind, arguments));
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
  EMS_CHECK(text_.capacity() - at >= text.size(), "the keys kept before would move");
  text_.insert(text_.end(), text.begin(), text.end());
  return {text_.data() + at, text.size()};
}

void BatchCall::AddItem(std::string_view key, const ems_pieces& value) {
  const std::string_view route = choice_.get.route_key;
  if (kind_ == BatchKind::kPut) {
    puts_.push_back(
        {.key = key, .value = AsBuffers<ConstBuffers>(value, &const_parts_), .route_key = route});
  } else if (kind_ == BatchKind::kGet) {
    gets_.push_back({.key = key,
                     .into = AsBuffers<MutableBuffers>(value, &mutable_parts_),
                     .route_key = route});
  } else {
    keys_.push_back({.key = key, .route_key = route});
  }
}

Outcome BatchCall::Run(Duration timeout) {
  choice_.SetTimeout(timeout);
  Client* const client = core_->client.get();
  switch (kind_) {
    case BatchKind::kPut:
      return TellAll(client->MultiPut(puts_, choice_.put), count_, codes_);
    case BatchKind::kGet: {
      const std::vector<Result<uint64_t>> results = client->MultiGet(gets_, choice_.get);
      EMS_CHECK(results.size() == count_, "{} results of {} items", results.size(), count_);
      for (size_t i = 0; lengths_ != nullptr && i < count_; ++i) {
        lengths_[i] = results[i].ok() ? *results[i] : 0;
      }
      return TellAll(results, count_, codes_);
    }
    case BatchKind::kExists:
      return TellAll(client->MultiExists(keys_, choice_.get), count_, codes_);
    case BatchKind::kRemove:
      return TellAll(client->MultiRemove(keys_, choice_.get), count_, codes_);
  }
  return {.status = Error(StatusCode::kInternal, "no such kind of batch")};
}

void BatchCall::Refuse(ems_status code) noexcept {
  if (codes_ != nullptr) std::fill_n(codes_, count_, code);
  if (lengths_ != nullptr) std::fill_n(lengths_, count_, uint64_t{0});
}

}  // namespace ems::capi
