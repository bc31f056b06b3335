// Arrays of a session: making them from host bytes, taking them apart and together, deleting, waiting, reading.
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/status.h"
#include "ifrt/strides.h"
#include "runtime/session_impl.h"
#include "runtime/wire.h"

namespace parkway::runtime {

std::string DescribeSpec(const ArraySpec& spec) { return absl::StrCat(ifrt::Name(spec.dtype), spec.shape.ToString()); }

// ---- Handles

absl::StatusOr<ArrayRecord*> SessionImpl::Find(Handle array, absl::string_view what) {
  auto it = arrays_.find(array);
  if (it == arrays_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": there is no array with handle ", array,
                     " in this session. Arrays of an earlier connection can't be used after a reconnect"));
  }
  if (it->second.deleted()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": the array ", DescribeSpec(it->second.spec), " (handle ",
                                                   array, ") has been deleted or donated"));
  }
  return &it->second;
}

absl::Status SessionImpl::CheckNewHandle(Handle result) const {
  if (result == 0 || arrays_.contains(result)) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle ", result, " for a new array is ", result == 0 ? "zero" : "in use"));
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::CheckNewHandles(absl::Span<const Handle> results) const {
  absl::flat_hash_set<Handle> seen;
  for (Handle result : results) {
    PARKWAY_RETURN_IF_ERROR(CheckNewHandle(result));
    if (results.size() > 1 && !seen.insert(result).second) {
      return absl::InvalidArgumentError(absl::StrCat("handle ", result, " is given for two new arrays"));
    }
  }
  return absl::OkStatus();
}

ArrayRecord SessionImpl::ErrorRecord(const ArraySpec& spec, const absl::Status& error) {
  BuffersRef buffers = core_->engines->NewBuffers(holder_, spec, 0, nullptr);
  buffers->FailAll(error);
  buffers->Settle();
  return ArrayRecord{spec, std::make_shared<Whole>(std::move(buffers)), {}};
}

absl::Status SessionImpl::FailResults(absl::Span<const Handle> results, absl::Span<const ArraySpec> specs,
                                      absl::Status error) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (arrays_.contains(results[i]) || results[i] == 0) continue;
    if (i < specs.size() && specs[i].sharding != nullptr) {
      Put(results[i], ErrorRecord(specs[i], error));
      continue;
    }
    // Nobody knows its type; the error is all there is to it.
    absl::StatusOr<ifrt::ShardingPtr> anywhere = ifrt::Sharding::SingleDevice(0);
    Put(results[i], ErrorRecord(ArraySpec{ifrt::DType::kF32, ifrt::Shape(), *std::move(anywhere)}, error));
  }
  return error;
}

absl::StatusOr<ArrayRecord> SessionImpl::NewRecord(const ArraySpec& spec, absl::string_view operation) {
  int64_t bytes = 0;
  for (int32_t device : spec.sharding->devices()->ids()) {
    if (!core_->options.topology.IsDevice(device)) {
      return absl::InvalidArgumentError(
          absl::StrCat("array ", DescribeSpec(spec), " names ", core_->options.topology.Describe(device),
                       "; this cluster has devices 0 to ", core_->options.topology.devices().size() - 1));
    }
  }
  if (ifrt::ByteWidth(spec.dtype) > 0) {
    PARKWAY_ASSIGN_OR_RETURN(ifrt::Shape shard, spec.sharding->ShardShape(spec.shape));
    PARKWAY_ASSIGN_OR_RETURN(bytes, shard.ByteSize(spec.dtype));
  }
  MadeBy& made_by = made_by_[operation];
  if (made_by == nullptr) made_by = std::make_shared<const std::string>(operation);
  return ArrayRecord{spec, std::make_shared<Whole>(core_->engines->NewBuffers(holder_, spec, bytes, made_by)), {}};
}

absl::Status SessionImpl::CheckRoom(std::string what, const BuffersRef& buffers) const {
  if (!core_->engines->limited()) return absl::OkStatus();
  return core_->engines->CheckMemory(*holder_, {.what = std::move(what), .outputs = {buffers}});
}

void SessionImpl::Submit(OperationRef operation, int64_t bytes) {
  operation->credit = std::make_shared<Credit>(this, bytes);
  core_->sequencer->Submit(id_, std::move(operation));
}

// ---- From host bytes

absl::Status SessionImpl::MakeArrayFromHostBuffer(Handle result, const ArraySpec& spec, PendingBytesRef bytes,
                                                  std::vector<int64_t> byte_strides) {
  std::vector<HostShards> sources(1);
  sources[0] = HostShards{std::move(bytes), spec.dtype, spec.shape, std::move(byte_strides), {}};
  for (int i = 0; i < spec.sharding->num_shards(); ++i) sources[0].shards.push_back(i);
  absl::Status status = CheckHostShards(spec, sources, true);
  absl::StatusOr<ArrayRecord> record = status.ok() ? NewRecord(spec, "device_put") : status;
  if (!record.ok()) return FailResults({result}, {spec}, record.status());
  return SubmitPut(result, spec, *std::move(record), std::move(sources), true);
}

absl::Status SessionImpl::MakeArrayFromHostShards(Handle result, const ArraySpec& spec,
                                                  std::vector<HostShards> shards) {
  absl::Status status = CheckHostShards(spec, shards, false);
  absl::StatusOr<ArrayRecord> record = status.ok() ? NewRecord(spec, "device_put") : status;
  if (!record.ok()) return FailResults({result}, {spec}, record.status());
  return SubmitPut(result, spec, *std::move(record), std::move(shards), false);
}

absl::Status SessionImpl::CheckHostShards(const ArraySpec& spec, const std::vector<HostShards>& shards,
                                          bool whole_source) const {
  std::vector<bool> given(spec.sharding->num_shards());
  for (const HostShards& source : shards) {
    if (source.dtype != spec.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("array ", DescribeSpec(spec), " can't be made of a host buffer of ", ifrt::Name(source.dtype)));
    }
    if (!source.byte_strides.empty() && ifrt::ByteWidth(source.dtype) > 0) {
      PARKWAY_RETURN_IF_ERROR(
          ifrt::StridedSize(source.shape, source.byte_strides, ifrt::ByteWidth(source.dtype)).status());
    }
    for (int shard : source.shards) {
      if (shard < 0 || shard >= spec.sharding->num_shards() || given[shard]) {
        return absl::InvalidArgumentError(absl::StrCat("array ", DescribeSpec(spec), " has ",
                                                       spec.sharding->num_shards(), " shards; shard ", shard,
                                                       " is given twice or is none of them"));
      }
      given[shard] = true;
      if (whole_source) {
        if (spec.sharding->num_shards() > 1) {
          PARKWAY_RETURN_IF_ERROR(spec.sharding->ShardRegion(spec.shape, shard).status());
        }
        continue;
      }
      PARKWAY_ASSIGN_OR_RETURN(ifrt::Shape expected, spec.sharding->ShardShape(spec.shape, shard));
      if (!(expected == source.shape)) {
        return absl::InvalidArgumentError(absl::StrCat("shard ", shard, " of array ", DescribeSpec(spec),
                                                       " is of shape ", expected.ToString(),
                                                       ", but its host buffer is of shape ", source.shape.ToString()));
      }
    }
  }
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) {
      return absl::InvalidArgumentError(absl::StrCat("no host buffer for shard ", i, " of array ", DescribeSpec(spec)));
    }
  }
  return absl::OkStatus();
}

namespace {

// What a Put does for one host, out of the sources that have come.
Op PutFor(int host, const Topology& topology, const ArraySpec& spec, uint64_t array,
          absl::Span<const HostShards> sources, absl::Span<const HostSource> encoded, bool whole_source) {
  Op op;
  parkway::Put* put = op.mutable_put();
  put->set_array(array);
  if (spec.sharding->memory_kind().has_value()) put->set_memory_kind(*spec.sharding->memory_kind());
  for (size_t s = 0; s < sources.size(); ++s) {
    int index = -1;
    for (int shard : sources[s].shards) {
      int device = spec.sharding->devices()->id(shard);
      if (topology.device(device).host != host) continue;
      if (index < 0) {
        index = put->sources_size();
        *put->add_sources() = encoded[s];
      }
      PutShard* target = put->add_shards();
      target->set_device(device);
      target->set_source(index);
      absl::StatusOr<ifrt::Region> region = ifrt::WholeRegion(sources[s].shape);
      if (whole_source && spec.sharding->num_shards() > 1) {
        region = spec.sharding->ShardRegion(spec.shape, shard);
        EncodeRegion(*region, target->mutable_region());
      }
      EncodeType(spec.dtype, region->size, target->mutable_type());
    }
  }
  return op;
}

absl::StatusOr<Bytes> CheckedSource(const ArraySpec& spec, const HostShards& source,
                                    const absl::StatusOr<Bytes>& bytes) {
  if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("host buffer of array ", DescribeSpec(spec)));
  int width = ifrt::ByteWidth(source.dtype);
  ifrt::Dims strides = source.byte_strides.empty() ? ifrt::RowMajorStrides(source.shape, width)
                                                   : ifrt::Dims(source.byte_strides.begin(), source.byte_strides.end());
  PARKWAY_ASSIGN_OR_RETURN(int64_t expected, ifrt::StridedSize(source.shape, strides, width));
  if (static_cast<int64_t>(bytes->size) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("host buffer of array ", DescribeSpec(spec), " has ", bytes->size,
                                                   " bytes; its shape and strides need ", expected));
  }
  return *bytes;
}

// The sources as operations carry them, the large ones as transfers, whose ids are added to `offered`.
absl::StatusOr<std::vector<HostSource>> EncodeSources(const ArraySpec& spec, absl::Span<const HostShards> sources,
                                                      absl::Span<const absl::StatusOr<Bytes>> arrived,
                                                      Transfers& transfers, std::vector<uint64_t>& offered) {
  std::vector<HostSource> encoded(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    PARKWAY_ASSIGN_OR_RETURN(Bytes bytes, CheckedSource(spec, sources[i], arrived[i]));
    EncodeType(sources[i].dtype, sources[i].shape.dims(), encoded[i].mutable_type());
    for (int64_t stride : sources[i].byte_strides) encoded[i].add_byte_strides(stride);
    if (bytes.size <= limits::kInlinePutBytes) {
      encoded[i].set_inline_bytes(std::string(bytes.view()));
    } else {
      *encoded[i].mutable_transfer() = transfers.Offer(std::move(bytes));
      offered.push_back(encoded[i].transfer().id());
    }
  }
  return encoded;
}

}  // namespace

absl::Status SessionImpl::SubmitPut(Handle result, const ArraySpec& spec, ArrayRecord record,
                                    std::vector<HostShards> sources, bool whole_source) {
  if (absl::Status fresh = CheckNewHandle(result); !fresh.ok()) return fresh;
  if (spec.dtype == ifrt::DType::kString) return PutStrings(result, spec, std::move(record), sources);
  if (ifrt::ByteWidth(spec.dtype) == 0) {
    return FailResults(
        {result}, {spec},
        absl::UnimplementedError(absl::StrCat("arrays of ", ifrt::Name(spec.dtype), " can't be made of host buffers")));
  }
  // Clients give strides for dense buffers too; an engine takes the pages of a buffer as they are when it has none.
  for (HostShards& source : sources) {
    if (source.byte_strides.empty()) continue;
    const int width = ifrt::ByteWidth(source.dtype);
    if (ifrt::IsRowMajor(source.shape, source.byte_strides, width)) source.byte_strides.clear();
  }
  BuffersRef buffers = record.whole->buffers();
  auto whole = record.whole;
  Put(result, std::move(record));
  HostList hosts = core_->engines->HostsOf(spec.sharding->devices()->ids());
  auto shared = std::make_shared<std::vector<HostShards>>(std::move(sources));
  auto arrived = std::make_shared<std::vector<absl::StatusOr<Bytes>>>(shared->size(), absl::UnknownError("not there"));
  auto fail = [buffers](const absl::Status& why) {
    buffers->FailAll(why);
    buffers->Settle();
  };
  auto issue = [this, spec, buffers, whole, shared, arrived, hosts, whole_source, fail](uint64_t,
                                                                                        Issued issued) mutable {
    std::vector<uint64_t> offered;
    const absl::Status room = CheckRoom("device_put of " + DescribeSpec(spec), buffers);
    absl::StatusOr<std::vector<HostSource>> encoded =
        room.ok() ? EncodeSources(spec, *shared, *arrived, *core_->options.transfers, offered) : room;
    arrived->clear();
    if (!encoded.ok()) {
      for (uint64_t id : offered) core_->options.transfers->Drop(id);
      fail(encoded.status());
      return;
    }
    InFlight entry{.session = id_, .hosts = hosts, .outputs = {buffers}, .what = "device_put of " + DescribeSpec(spec)};
    std::vector<Op> ops;
    for (int host : hosts) {
      ops.push_back(PutFor(host, core_->options.topology, spec, buffers->id(), *shared, *encoded, whole_source));
    }
    entry.credit = std::move(issued.credit);
    entry.done = [transfers = core_->options.transfers, offered = std::move(offered)](const absl::Status&) {
      for (uint64_t id : offered) transfers->Drop(id);
    };
    core_->engines->IssueEach(std::move(ops), std::move(entry));
    whole.reset();
  };
  auto operation = std::make_shared<Operation>();
  operation->hosts = hosts;
  operation->inputs_awaited = static_cast<int>(shared->size());
  operation->issue = std::move(issue);
  operation->fail = std::move(fail);
  Submit(operation, buffers->total_bytes());
  for (size_t i = 0; i < shared->size(); ++i) {
    PendingBytesRef pending = std::move((*shared)[i].bytes);
    pending->When([this, alive = alive_, executor = core_->options.executor, operation, arrived,
                   i](const absl::StatusOr<Bytes>& bytes) {
      executor->Post([this, alive, operation, arrived, i, bytes] {
        if (!*alive) return;
        (*arrived)[i] = bytes;
        core_->sequencer->InputArrived(id_, operation);
      });
    });
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::PutStrings(Handle result, const ArraySpec& spec, ArrayRecord record,
                                     const std::vector<HostShards>& sources) {
  BuffersRef buffers = record.whole->buffers();
  Put(result, std::move(record));
  buffers->host_bytes.resize(spec.sharding->num_shards());
  auto left = std::make_shared<int>(static_cast<int>(sources.size()));
  for (const HostShards& source : sources) {
    source.bytes->When([buffers, left, spec, shards = source.shards,
                        executor = core_->options.executor](const absl::StatusOr<Bytes>& bytes) {
      executor->Post([buffers, left, spec, shards, bytes] {
        if (!bytes.ok()) {
          buffers->FailAll(Annotate(bytes.status(), absl::StrCat("host buffer of array ", DescribeSpec(spec))));
        } else {
          for (int shard : shards) buffers->host_bytes[shard] = *bytes;
        }
        if (--*left == 0) buffers->Settle();
      });
    });
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::MakeErrorArray(Handle result, const ArraySpec& spec, absl::Status error) {
  PARKWAY_RETURN_IF_ERROR(CheckNewHandle(result));
  if (error.ok()) error = absl::InvalidArgumentError("an error array was made with the status OK");
  Put(result, ErrorRecord(spec, error));
  return absl::OkStatus();
}

// ---- Apart and together

void SessionImpl::FinishInput(Handle array, CopySemantics semantics) {
  if (semantics != CopySemantics::kDonateInput) return;
  if (auto it = arrays_.find(array); it != arrays_.end()) it->second.Drop();
}

absl::StatusOr<ArrayRecord> SessionImpl::Rearranged(const ArraySpec& spec, absl::Span<const ArrayRecord* const> inputs,
                                                    absl::Span<const RemapSource> sources, absl::string_view what) {
  if (static_cast<int>(sources.size()) != spec.sharding->num_shards()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", spec.sharding->num_shards(), " shards of ",
                                                   DescribeSpec(spec), " are to be made of ", sources.size(),
                                                   " inputs"));
  }
  ArrayRecord record{spec, nullptr, {}};
  for (size_t i = 0; i < sources.size(); ++i) {
    const ArrayRecord& input = *inputs[sources[i].input];
    int shard = sources[i].input_shard;
    if (input.spec.dtype != spec.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": input ", sources[i].input, " is ",
                                                     DescribeSpec(input.spec), ", the result is ", DescribeSpec(spec)));
    }
    if (input.device_of(shard) != spec.sharding->devices()->id(static_cast<int>(i))) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": shard ", i, " of ", DescribeSpec(spec), " lies on ",
                       core_->options.topology.Describe(spec.sharding->devices()->id(static_cast<int>(i))),
                       ", its input on ", core_->options.topology.Describe(input.device_of(shard))));
    }
    absl::StatusOr<ifrt::Shape> expected = spec.sharding->ShardShape(spec.shape, static_cast<int>(i));
    absl::StatusOr<ifrt::Shape> given = input.spec.sharding->ShardShape(input.spec.shape, shard);
    if (expected.ok() && given.ok() && !(*expected == *given)) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": shard ", i, " of ", DescribeSpec(spec), " is of shape ",
                                                     expected->ToString(), ", its input of shape ", given->ToString()));
    }
    record.shards.push_back(input.ShardAt(shard));
  }
  // All shards of one operation's result, in its order: one record again.
  const BuffersRef& first = record.shards[0]->buffers();
  bool whole = first->devices() == spec.sharding->devices();
  for (const auto& shard : record.shards) whole = whole && shard->buffers() == first;
  if (whole) {
    record.whole = std::make_shared<Whole>(first);
    record.shards.clear();
  }
  return record;
}

absl::Status SessionImpl::Assemble(Handle result, const ArraySpec& spec, absl::Span<const Handle> arrays,
                                   CopySemantics semantics) {
  PARKWAY_RETURN_IF_ERROR(CheckNewHandle(result));
  std::vector<const ArrayRecord*> inputs;
  std::vector<RemapSource> sources;
  for (Handle handle : arrays) {
    absl::StatusOr<ArrayRecord*> input = Find(handle, "assembling an array of single-device arrays");
    if (!input.ok()) return FailResults({result}, {spec}, input.status());
    for (int shard = 0; shard < (*input)->num_shards(); ++shard) {
      sources.push_back(RemapSource{static_cast<int>(inputs.size()), shard});
    }
    inputs.push_back(*input);
  }
  absl::StatusOr<ArrayRecord> record = Rearranged(spec, inputs, sources, "assembling an array of single-device arrays");
  if (!record.ok()) return FailResults({result}, {spec}, record.status());
  for (Handle handle : arrays) FinishInput(handle, semantics);
  Put(result, *std::move(record));
  return absl::OkStatus();
}

absl::Status SessionImpl::Disassemble(Handle array, absl::Span<const Handle> results, CopySemantics semantics) {
  PARKWAY_RETURN_IF_ERROR(CheckNewHandles(results));
  absl::StatusOr<ArrayRecord*> found = Find(array, "splitting an array into single-device arrays");
  if (!found.ok()) return FailResults(results, {}, found.status());
  ArrayRecord input = **found;  // a copy: making results may move the table
  if (static_cast<int>(results.size()) != input.num_shards()) {
    return FailResults(
        results, {},
        absl::InvalidArgumentError(absl::StrCat("splitting ", DescribeSpec(input.spec), ": it has ", input.num_shards(),
                                                " shards, and ", results.size(), " results were asked for")));
  }
  for (int i = 0; i < input.num_shards(); ++i) {
    ArraySpec spec{input.spec.dtype, input.spec.shape, input.spec.sharding->ShardOf(i)};
    if (absl::StatusOr<ifrt::Shape> shape = input.spec.sharding->ShardShape(input.spec.shape, i); shape.ok()) {
      spec.shape = *std::move(shape);
    }
    ArrayRecord record{std::move(spec), nullptr, {}};
    if (input.num_shards() == 1) {
      record.whole = input.whole;
      record.shards = input.shards;
    } else {
      record.shards.push_back(input.ShardAt(i));
    }
    Put(results[i], std::move(record));
  }
  FinishInput(array, semantics);
  return absl::OkStatus();
}

absl::Status SessionImpl::FullyReplicatedShard(Handle array, Handle result, CopySemantics semantics) {
  PARKWAY_RETURN_IF_ERROR(CheckNewHandle(result));
  absl::StatusOr<ArrayRecord*> found = Find(array, "taking one replica");
  if (!found.ok()) return FailResults({result}, {}, found.status());
  ArrayRecord input = **found;
  if (!input.spec.sharding->IsFullyReplicated()) {
    return FailResults(
        {result}, {input.spec},
        absl::InvalidArgumentError(absl::StrCat("taking one replica: ", DescribeSpec(input.spec), " with sharding ",
                                                input.spec.sharding->ToString(), " is not fully replicated")));
  }
  ArrayRecord record{ArraySpec{input.spec.dtype, input.spec.shape, input.spec.sharding->ShardOf(0)}, nullptr, {}};
  record.shards.push_back(input.ShardAt(0));
  Put(result, std::move(record));
  FinishInput(array, semantics);
  return absl::OkStatus();
}

absl::Status SessionImpl::Remap(absl::Span<const Handle> arrays, absl::Span<const Handle> results,
                                std::vector<RemapOutput> outputs, CopySemantics semantics) {
  PARKWAY_RETURN_IF_ERROR(CheckNewHandles(results));
  std::vector<ArraySpec> specs;
  for (const RemapOutput& output : outputs) specs.push_back(output.spec);
  auto check = [&]() -> absl::Status {
    if (results.size() != outputs.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("remapping arrays: ", outputs.size(), " outputs, but ", results.size(), " result handles"));
    }
    std::vector<const ArrayRecord*> inputs;
    for (Handle handle : arrays) {
      PARKWAY_ASSIGN_OR_RETURN(ArrayRecord * input, Find(handle, "remapping arrays"));
      inputs.push_back(input);
    }
    std::vector<ArrayRecord> records;
    for (const RemapOutput& output : outputs) {
      for (const RemapSource& source : output.sources) {
        if (source.input < 0 || source.input >= static_cast<int>(inputs.size()) || source.input_shard < 0 ||
            source.input_shard >= inputs[source.input]->num_shards()) {
          return absl::InvalidArgumentError(
              absl::StrCat("remapping arrays: there is no shard ", source.input_shard, " of input ", source.input));
        }
      }
      PARKWAY_ASSIGN_OR_RETURN(ArrayRecord record, Rearranged(output.spec, inputs, output.sources, "remapping arrays"));
      records.push_back(std::move(record));
    }
    for (size_t i = 0; i < results.size(); ++i) Put(results[i], std::move(records[i]));
    return absl::OkStatus();
  };
  if (absl::Status status = check(); !status.ok()) return FailResults(results, specs, status);
  for (Handle handle : arrays) FinishInput(handle, semantics);
  return absl::OkStatus();
}

// ---- The end of arrays

absl::StatusOr<Handle> SessionImpl::Delete(absl::Span<const Handle> arrays) {
  absl::Status status;
  for (Handle handle : arrays) {
    auto it = arrays_.find(handle);
    if (it != arrays_.end()) {
      it->second.Drop();
    } else if (status.ok()) {
      status = absl::InvalidArgumentError(
          absl::StrCat("deleting: there is no array with handle ", handle, " in this session"));
    }
  }
  return NewFuture(true, status);
}

void SessionImpl::Destruct(absl::Span<const Handle> arrays) {
  for (Handle handle : arrays) arrays_.erase(handle);
}

absl::StatusOr<bool> SessionImpl::IsDeleted(Handle array) {
  auto it = arrays_.find(array);
  if (it == arrays_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no array with handle ", array, " in this session"));
  }
  return it->second.deleted();
}

// ---- Waiting and reading

Handle SessionImpl::NewFuture(bool settled, absl::Status status) {
  Handle handle = NewHandle();
  auto future = std::make_shared<Future>();
  future->settled = settled;
  future->status = std::move(status);
  futures_[handle] = std::move(future);
  return handle;
}

void SessionImpl::Settle(Future& future, absl::Status status) {
  future.settled = true;
  future.status = std::move(status);
  std::vector<StatusCallback> waiters = std::move(future.waiters);
  future.waiters.clear();
  for (StatusCallback& waiter : waiters) waiter(future.status);
}

void SessionImpl::CheckFuture(Handle handle, StatusCallback done) {
  auto it = futures_.find(handle);
  if (it == futures_.end()) {
    done(absl::InvalidArgumentError(absl::StrCat("there is no future with handle ", handle, " in this session")));
    return;
  }
  FutureRef future = std::move(it->second);
  futures_.erase(it);
  if (future->settled) {
    done(future->status);
  } else {
    future->waiters.push_back(std::move(done));
  }
}

void SessionImpl::WhenReady(absl::Span<const Handle> values, StatusCallback done) {
  struct Wait {
    int left = 1;
    std::vector<ArrayRecord> records;  // as they were when asked
    absl::Status error;
    StatusCallback done;
    void Ended() {
      if (--left > 0) return;
      for (const ArrayRecord& record : records) {
        if (error.ok()) error = record.Error();
      }
      records.clear();
      done(error);
    }
  };
  auto wait = std::make_shared<Wait>();
  wait->done = std::move(done);
  std::vector<BuffersRef> pending;
  for (Handle value : values) {
    if (auto future = futures_.find(value); future != futures_.end()) {
      if (future->second->settled) {
        if (wait->error.ok()) wait->error = future->second->status;
      } else {
        ++wait->left;
        future->second->waiters.push_back([wait](absl::Status status) {
          if (wait->error.ok()) wait->error = std::move(status);
          wait->Ended();
        });
      }
      continue;
    }
    absl::StatusOr<ArrayRecord*> found = Find(value, "waiting for an array");
    if (!found.ok()) {
      if (wait->error.ok()) wait->error = found.status();
      continue;
    }
    (*found)->ForEachBuffers([&](const BuffersRef& buffers) {
      if (!buffers->settled()) pending.push_back(buffers);
    });
    wait->records.push_back(**found);
  }
  wait->left += static_cast<int>(pending.size());
  for (const BuffersRef& buffers : pending) buffers->WhenSettled([wait] { wait->Ended(); });
  wait->Ended();
}

void SessionImpl::Read(Handle array, absl::AnyInvocable<void(absl::StatusOr<Bytes>)> done) {
  absl::StatusOr<ArrayRecord*> found = Find(array, "reading an array");
  if (!found.ok()) {
    done(found.status());
    return;
  }
  const ArrayRecord& record = **found;
  if (record.num_shards() > 1 && !record.spec.sharding->IsFullyReplicated()) {
    done(absl::InvalidArgumentError(
        absl::StrCat("reading ", DescribeSpec(record.spec),
                     ": only arrays of one shard or fully replicated ones can be read whole")));
    return;
  }
  int shard = 0;
  while (shard + 1 < record.num_shards() && !record.buffers_of(shard).ShardError(record.device_of(shard)).ok()) ++shard;
  int device = record.device_of(shard);
  BuffersRef buffers = record.buffers_ref(shard);
  if (absl::Status error = buffers->ShardError(device); !error.ok() && buffers->settled()) {
    done(error);
    return;
  }
  if (record.spec.dtype == ifrt::DType::kString) {
    buffers->WhenSettled([buffers, device, done = std::move(done)]() mutable {
      absl::Status error = buffers->ShardError(device);
      if (!error.ok()) return done(error);
      done(buffers->host_bytes[*buffers->devices()->Position(device)]);
    });
    return;
  }
  auto pin = record.ShardAt(shard);
  auto shared = std::make_shared<absl::AnyInvocable<void(absl::StatusOr<Bytes>)>>(std::move(done));
  auto operation = std::make_shared<Operation>();
  operation->hosts = {core_->options.topology.device(device).host};
  operation->issue = [this, pin = std::move(pin), buffers, device, shared](uint64_t, const Issued&) mutable {
    absl::Status error = buffers->ShardError(device);
    if (!error.ok()) return (*shared)(error);
    core_->engines->Read(id_, *buffers, device, [shared, buffers, device](absl::StatusOr<Bytes> bytes) {
      if (bytes.ok()) return (*shared)(std::move(bytes));
      // The engine's word is a symptom where the core knows the cause, or soon will.
      buffers->WhenSettled([shared, buffers, device, symptom = bytes.status()] {
        absl::Status cause = buffers->ShardError(device);
        (*shared)(cause.ok() ? symptom : cause);
      });
    });
  };
  operation->fail = [shared](const absl::Status& why) { (*shared)(why); };
  Submit(std::move(operation), 0);
}

absl::StatusOr<ArraySpec> SessionImpl::Describe(Handle array) const {
  auto it = arrays_.find(array);
  if (it == arrays_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no array with handle ", array, " in this session"));
  }
  return it->second.spec;
}

}  // namespace parkway::runtime
