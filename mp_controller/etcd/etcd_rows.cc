#include "mp_controller/etcd/etcd_rows.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/logging.h"
#include "common/parse_number.h"
#include "mp_controller/etcd/row_journal.h"

namespace ems::controller {
namespace {

constexpr int64_t kPageRows = 128;
// What a row says: the value itself, or where its parts are.
constexpr char kInline = 'v';
constexpr char kInParts = 'p';

std::string LedgerKey(const std::string& base) { return base + "/ledger"; }

uint64_t SumOf(std::string_view key, std::string_view value) {
  RowLedger one;
  one.Add(key, value);
  return one.sum;
}

}  // namespace

// By key, without `base`.
struct EtcdRows::Found {
  std::map<std::string, std::string> rows;
  std::map<std::string, std::string> parts;
  std::string ledger;
  std::string journal;
};

std::string EtcdRows::RowKey(std::string_view key) const {
  return fmt::format("{}/row/{}", parts_.base, key);
}

Status EtcdRows::Damaged(std::string_view what) const {
  return Error(
      StatusCode::kDataLoss,
      "the controllers' store in etcd, {}, is damaged: {}. Nothing was changed. Put etcd's "
      "newest snapshot back; or begin a new cluster: stop all servers and controllers, "
      "empty their data folders, delete the keys of the prefix, start the controllers, "
      "create the namespaces again, start servers and clients",
      parts_.base, what);
}

Status EtcdRows::Send(const EtcdTransaction& transaction) {
  const TimePoint asked = Clock::System().Now();
  const Duration most = std::min(parts_.lease->Left(), parts_.lease->options().timeout);
  if (most <= Duration::zero())
    return Error(StatusCode::kUnavailable, "this controller does not lead any more");
  const Result<bool> done = parts_.etcd->Commit(transaction, Deadline::After(most));
  if (parts_.written) parts_.written(Clock::System().Now() - asked);
  if (done.ok() && *done) return OkStatus();
  const Status fault = done.ok()
                           ? Error(StatusCode::kUnavailable, "another controller has written since")
                           : Error(StatusCode::kUnavailable, "it is not known what is stored: {}",
                                   ToString(done.status()));
  parts_.lease->Lose(Message(fault));
  return fault;
}

Status EtcdRows::Step(EtcdTransaction transaction) {
  transaction.when = {parts_.lease->guard()};
  return Send(transaction);
}

Status EtcdRows::CommitTo(const RowLedger& next, EtcdTransaction transaction) {
  const std::string key = LedgerKey(parts_.base);
  transaction.when = {parts_.lease->guard()};
  if (ledger_text_.empty()) {
    transaction.when.push_back({.key = key, .mod_revision = 0});
  } else {
    transaction.when.push_back({.key = key, .value = ledger_text_});
  }
  std::string text = next.ToText();
  transaction.put.emplace_back(key, text);
  EMS_RETURN_IF_ERROR(Send(transaction));
  ledger_ = next;
  ledger_text_ = std::move(text);
  if (parts_.note) parts_.note(ledger_.changes);
  return OkStatus();
}

Result<std::string> EtcdRows::PutParts(const std::string& key, std::string_view value,
                                       uint64_t change, std::string* prefix) {
  *prefix = fmt::format("{}/part/{}/{:016x}/", parts_.base, key, change);
  size_t count = 0;
  for (; !value.empty(); ++count) {
    const std::string_view part = value.substr(0, kPartBytes);
    value.remove_prefix(part.size());
    EtcdTransaction one;
    one.put.emplace_back(fmt::format("{}{:08x}", *prefix, count), part);
    EMS_RETURN_IF_ERROR(Step(std::move(one)));
  }
  return fmt::format("{}{:016x} {}", kInParts, change, count);
}

// The transaction that carries a change out, and what is known of its rows afterwards.
Status EtcdRows::Write(const RowChange& change) {
  if (!parts_.lease->Holds())
    return Error(StatusCode::kUnavailable, "this controller does not lead any more");
  std::map<std::string, const std::string*> after;  // the last word on each key counts
  for (const auto& [key, value] : change.put) after[key] = &value;
  for (const std::string& key : change.drop) after[key] = nullptr;
  RowLedger next = ledger_;
  ++next.changes;
  EtcdTransaction all;
  std::map<std::string, Known> news;
  size_t bytes = 0;
  for (const auto& [key, value] : after) {
    const auto old = known_.find(key);
    if (old != known_.end()) {
      next.sum -= old->second.sum;
      if (!old->second.parts.empty())
        all.drop_range.emplace_back(old->second.parts, KeyBehind(old->second.parts));
    }
    if (value == nullptr) {
      if (old != known_.end()) all.drop.push_back(RowKey(key));
      continue;
    }
    Known& row = news[key];
    row.sum = SumOf(key, *value);
    next.sum += row.sum;
    std::string stored = kInline + *value;
    if (bytes + stored.size() > kInlineBytesMax) {
      EMS_ASSIGN_OR_RETURN(stored, PutParts(key, *value, next.changes, &row.parts));
    }
    bytes += stored.size();
    all.put.emplace_back(RowKey(key), std::move(stored));
  }
  if (all.put.size() + all.drop.size() + all.drop_range.size() <= kRowsMax) {
    EMS_RETURN_IF_ERROR(CommitTo(next, std::move(all)));
  } else {
    EtcdTransaction journal;
    journal.put.emplace_back(parts_.base + "/journal", ToJournal(all));
    EMS_RETURN_IF_ERROR(CommitTo(next, std::move(journal)));
    EMS_RETURN_IF_ERROR(CarryOut(all));
  }
  for (const auto& [key, value] : after) {
    if (value == nullptr) known_.erase(key);
  }
  for (auto& [key, row] : news) known_[key] = std::move(row);
  return OkStatus();
}

// A journal's change, in steps; the last one takes the journal away.
Status EtcdRows::CarryOut(const EtcdTransaction& all) {
  std::vector<EtcdTransaction> steps(1);
  size_t rows = 0;
  const auto next = [&]() -> EtcdTransaction& {
    if (++rows % kRowsMax == 0) steps.emplace_back();
    return steps.back();
  };
  for (const auto& put : all.put) next().put.push_back(put);
  for (const std::string& key : all.drop) next().drop.push_back(key);
  for (const auto& range : all.drop_range) next().drop_range.push_back(range);
  steps.back().drop.push_back(parts_.base + "/journal");
  for (EtcdTransaction& step : steps) EMS_RETURN_IF_ERROR(Step(std::move(step)));
  return OkStatus();
}

Result<EtcdRows::Found> EtcdRows::ReadAll() {
  Found found;
  const std::string base = parts_.base + "/";
  std::string first = base;
  const std::string end = KeyBehind(base);
  int64_t revision = 0;
  for (bool more = true; more;) {
    Result<EtcdPage> read = parts_.etcd->Range(first, end, kPageRows, revision,
                                               Deadline::After(parts_.lease->options().timeout));
    // Compacted since the first page: it is read again.
    if (read.status().code() == StatusCode::kOutOfRange)
      return Error(StatusCode::kUnavailable, "{}", Message(read.status()));
    EMS_ASSIGN_OR_RETURN(EtcdPage page, std::move(read));
    if (revision == 0) revision = page.revision;
    more = page.more && !page.rows.empty();
    if (more) first = page.rows.back().key + '\0';
    for (EtcdRow& row : page.rows) {
      std::string key = row.key.substr(base.size());
      if (key.starts_with("row/")) {
        found.rows[key.substr(4)] = std::move(row.value);
      } else if (key.starts_with("part/")) {
        found.parts[row.key] = std::move(row.value);
      } else if (key == "ledger") {
        found.ledger = std::move(row.value);
      } else if (key == "journal") {
        found.journal = std::move(row.value);
      }
    }
  }
  return found;
}

Result<std::string> EtcdRows::ValueIn(const Found& found, std::string_view stored,
                                      std::string* parts_prefix) const {
  if (stored.starts_with(kInline)) return std::string(stored.substr(1));
  const size_t blank = stored.find(' ');
  const auto count = blank == std::string_view::npos
                         ? std::nullopt
                         : ParseNumber<uint64_t>(stored.substr(blank + 1));
  if (!stored.starts_with(kInParts) || !count.has_value()) return Damaged("a row cannot be read");
  *parts_prefix += fmt::format("{}/", stored.substr(1, blank - 1));
  std::string value;
  for (uint64_t i = 0; i < *count; ++i) {
    const auto part = found.parts.find(fmt::format("{}{:08x}", *parts_prefix, i));
    if (part == found.parts.end()) return Damaged("a part of a row is missing");
    value += part->second;
  }
  return value;
}

// Parts of a change that its writer did not live to make count.
Status EtcdRows::DropOrphans(const Found& found) {
  std::set<std::string> used;
  for (const auto& [key, row] : known_) {
    if (!row.parts.empty()) used.insert(row.parts);
  }
  std::set<std::string> orphans;
  for (const auto& [key, part] : found.parts) {
    const std::string prefix = key.substr(0, key.rfind('/') + 1);
    if (!used.contains(prefix)) orphans.insert(prefix);
  }
  for (const std::string& prefix : orphans) {
    EtcdTransaction drop;
    drop.drop_range.emplace_back(prefix, KeyBehind(prefix));
    EMS_RETURN_IF_ERROR(Step(std::move(drop)));
  }
  return OkStatus();
}

Result<EtcdRows::Glance> EtcdRows::Look(EtcdClient* etcd, const std::string& base,
                                        const std::string& key, Deadline deadline) {
  Glance glance;
  EMS_ASSIGN_OR_RETURN(const EtcdPage ledger, etcd->Range(LedgerKey(base), "", 1, 0, deadline));
  if (!ledger.rows.empty())
    glance.changes = RowLedger::FromText(ledger.rows.front().value).value_or(RowLedger()).changes;
  EMS_ASSIGN_OR_RETURN(const EtcdPage row,
                       etcd->Range(fmt::format("{}/row/{}", base, key), "", 1, 0, deadline));
  if (!row.rows.empty() && row.rows.front().value.starts_with(kInline))
    glance.value = row.rows.front().value.substr(1);
  return glance;
}

Status EtcdRows::ForEach(const TakeRow& take) {
  EMS_ASSIGN_OR_RETURN(Found found, ReadAll());
  if (!found.journal.empty()) {
    EMS_ASSIGN_OR_RETURN(const EtcdTransaction all, FromJournal(found.journal));
    EMS_RETURN_IF_ERROR(CarryOut(all));
    EMS_LOG(kInfo, "mp_controller", "a change of an earlier leader is carried out rows={}",
            all.put.size() + all.drop.size());
    EMS_ASSIGN_OR_RETURN(found, ReadAll());
  }
  RowLedger sums;
  Values values;
  known_.clear();
  for (const auto& [key, stored] : found.rows) {
    std::string prefix = fmt::format("{}/part/{}/", parts_.base, key);
    EMS_ASSIGN_OR_RETURN(std::string value, ValueIn(found, stored, &prefix));
    if (stored.starts_with(kInline)) prefix.clear();
    known_[key] = {.sum = SumOf(key, value), .parts = std::move(prefix)};
    sums.Add(key, value);
    values[key] = std::move(value);
  }
  std::optional<RowLedger> ledger = RowLedger{};
  if (!found.ledger.empty()) ledger = RowLedger::FromText(found.ledger);
  if (!ledger.has_value() || ledger->sum != sums.sum)
    return Damaged("its rows are not those that were written");
  if (parts_.check) EMS_RETURN_IF_ERROR(parts_.check(ledger->changes, values));
  ledger_ = *ledger;
  ledger_text_ = found.ledger;
  EMS_RETURN_IF_ERROR(DropOrphans(found));
  for (const auto& [key, value] : values) {
    const Status status = take(key, value);
    if (!status.ok()) return Damaged(Message(status));
  }
  return OkStatus();
}

}  // namespace ems::controller
