/// <reference types="node" />
import type { IncomingMessage, ServerResponse } from 'node:http';

/** An id. It is a Buffer if it is not UTF-8. */
export type ID = string | Uint8Array;

export interface ClientOptions {
  /** The address of a node, or of several with commas between. Default: LOWKIQ_URL, or http://127.0.0.1:7948. */
  url?: string;
  /** Default: LOWKIQ_TOKEN, or the contents of the file LOWKIQ_TOKEN_FILE. */
  token?: string;
  /** A file with the certificates of trusted authorities. Default: LOWKIQ_CA, or those of Node. */
  ca?: string;
  /** Files of the client's certificate and key. Default: LOWKIQ_CERT and LOWKIQ_KEY. */
  cert?: string;
  key?: string;
  /** Seconds that a request may take. Default: 10. */
  timeout?: number;
  /** Seconds for which a request is repeated while no node answers. Default: 30. */
  patience?: number;
}

export interface PushOptions {
  /** Payloads of an id are handled lowest score first. Default: the time of the push. */
  score?: number;
  /** When the job is due; numbers are unix seconds. Default: now. */
  performAt?: Date | number;
  /** Texts for the handler. */
  header?: Record<string, string>;
  /** Puts the id before all ids of its shard that are not urgent. */
  urgent?: boolean;
}

export interface PushedJob extends PushOptions {
  id: ID;
  /** JSON, or bytes as a Buffer. */
  payload?: unknown;
}

export interface Pushed {
  id?: string;
  /** The id in base64, if it is not UTF-8. */
  id_base64?: string;
  ok: true;
  /** Whether an equal payload was already waiting. */
  merged: boolean;
}

export interface CallOptions extends PushOptions {
  /** Seconds to wait, 0.001 to 300. Default: 60. */
  wait?: number;
  /** Seconds for which the reply is kept after its payload has ended, 1 to 604800. Default: wait and a minute. */
  keep?: number;
}

export interface Reply {
  id: ID;
  state: 'pending' | 'done' | 'buried' | 'deleted' | 'expired';
  /** The handler's result: JSON, or a Buffer. */
  result: any;
  /** Why the job was buried. */
  error: string;
  /** With which Client.reply asks again. */
  token: string;
}

/** A run as the API gives it. Times are unix seconds. */
export interface Run {
  id?: string;
  id_base64?: string;
  verdict: 'done' | 'failed' | 'exhausted' | 'crashed' | 'postponed' | 'cancelled' | 'expired';
  attempt: number;
  retry_count: number;
  shard: number;
  due: number;
  popped: number;
  began?: number;
  ended: number;
  node: string;
  instance: string;
  error?: string;
  log?: string;
  result?: unknown;
}

export interface Why {
  id: string;
  queue: string;
  shard: number;
  state: 'ready' | 'scheduled' | 'retry' | 'held' | 'in_flight' | 'blocked' | 'morgue' | 'absent';
  /** One sentence for people. */
  reason: string;
  due_s: number | null;
  since_s?: number;
}

/** A push with its queue. */
export interface QueuedJob extends Omit<PushedJob, 'urgent'> {
  queue: string;
}

export interface WorkflowJob extends QueuedJob {
  /** For people and for after. Default: queue and id. */
  name?: string;
  /** Names of jobs of the same request that must be done before. */
  after?: string[];
}

export interface WorkflowOptions {
  /** Is pushed once when all jobs are done and the workflow is closed. */
  done?: QueuedJob;
  /** Is pushed once when the jobs cannot go on, or at the deadline. */
  dead?: QueuedJob;
  /** Seconds from the start. Default: none. */
  deadline?: number;
  /** Whether jobs may be added until closeWorkflow. */
  open?: boolean;
}

/** A job of a workflow. Queue and id are '' if only the name of a dead job is known. */
export interface WorkflowMember {
  queue: string;
  id: string;
  name: string;
  /** Names of the jobs that it waits for, at most ten. */
  after?: string[];
}

/** The status of a workflow. Times are unix seconds. */
export interface Workflow {
  id: string;
  state: 'stored' | 'running' | 'done' | 'dead' | 'late' | 'cancelled';
  /** Numbers of jobs. */
  total: number;
  done: number;
  dead: number;
  waiting: number;
  running: number;
  /** Jobs that waited for others when the workflow was cancelled. */
  dropped: number;
  open: boolean;
  /** Names of the first ten dead jobs. */
  dead_names: string[];
  /** The first ten dead jobs. Absent in a list. */
  dead_jobs?: WorkflowMember[];
  /** The first ten jobs that wait for others. Absent in a list. */
  waiting_jobs?: WorkflowMember[];
  began?: number;
  changed?: number;
  ended?: number;
}

/** A request that a node refused or did not answer. */
export class LowkiqError extends Error {
  /** The status of the answer, null without an answer. */
  status: number | null;
  /** Whether the same request may succeed later, and does no harm if it comes twice. */
  safeToRepeat: boolean;
  /** Of a push: the jobs that are not stored, or may not be, in order. */
  jobs: PushedJob[];
  /** Why, for each of jobs. */
  reasons: string[];
}

export class Client {
  constructor(options?: ClientOptions);
  /** Pushes a job. Resolves when Redis has it. While no node answers, the push is repeated. */
  push(queue: string, id: ID, payload?: unknown, options?: PushOptions): Promise<Pushed>;
  /**
   * Pushes jobs in order. Nothing is sent unless all jobs can be sent. A refused job does not stop the others. The
   * LowkiqError at the end has the jobs that are not stored.
   */
  pushMany(queue: string, jobs: Iterable<PushedJob>): Promise<Pushed[]>;
  /** Pushes a job and waits for its end. A call is repeated only if no node can have stored it. */
  call(queue: string, id: ID, payload?: unknown, options?: CallOptions): Promise<Reply>;
  /** Asks again for the reply of a call. */
  reply(queue: string, id: ID, token: string): Promise<Reply>;
  /** Returns the runs of an id that the queue's journal has, the last run first. */
  history(queue: string, id: ID, options?: { limit?: number }): Promise<Run[]>;
  /** Returns where an id is, and why no handler has it. */
  why(queue: string, id: ID): Promise<Why>;
  /**
   * Starts a workflow, all of it or nothing. The same start again does nothing. Another workflow under the id is a LowkiqError
   * with status 409.
   */
  startWorkflow(id: string, jobs?: Iterable<WorkflowJob>, options?: WorkflowOptions): Promise<Workflow>;
  /** Adds jobs to an open workflow, all or none. The same jobs again do nothing. */
  addToWorkflow(id: string, jobs: Iterable<WorkflowJob>): Promise<Workflow>;
  /** Says that no more jobs will be added to a workflow. */
  closeWorkflow(id: string): Promise<Workflow>;
  /** Returns the status of a workflow. */
  workflow(id: string): Promise<Workflow>;
  /** Ends a workflow without a push. Its jobs are left alone, and those that wait for others are dropped. */
  cancelWorkflow(id: string): Promise<Workflow>;
  /** Closes the connections that are kept. */
  close(): void;
}

/** Thrown by a handler: the job can never succeed, and goes to the morgue with this reason. */
export class Bury extends Error {}

/** Thrown by a handler: not now. The whole batch comes again after so many seconds, without a retry. */
export class Postpone extends Error {
  constructor(seconds: number, reason?: string);
  seconds: number;
}

/** A Postpone that also keeps other ids of the group from handlers, such as "acme:". "" stands for those of the batch. */
export class Throttle extends Postpone {
  constructor(seconds: number, group?: string);
  group: string;
}

export interface Payload {
  /** JSON, or a Buffer. */
  data: any;
  score: number;
  header: Record<string, string>;
}

export interface Note {
  /** A share from 0 to 1. */
  progress?: number;
  /** A line of at most 1 KiB. */
  log?: string;
  /** The state with which the next attempt begins. Not over HTTP. */
  state?: unknown;
}

/** An id with its waiting payloads, lowest score first. */
export class Job {
  private constructor();
  readonly id: ID;
  readonly payloads: Payload[];
  /** 1 for the first attempt. */
  readonly attempt: number;
  /** How many callers wait for the result. */
  readonly callers: number;
  readonly queue: string;
  readonly shard: number;
  /** Only grows for a shard. A lower fence belongs to an owner that has lost the shard. */
  readonly fence: number;
  readonly flight: number;
  /** What the last job of the id has kept. Assign it to change it, null to delete it. Redis has it once the job is done. */
  state: any;
  /** Assign it to answer the callers. */
  result: any;
  /** Adds a push to any registered queue, which Redis stores with the end of the job or not at all. */
  followUp(queue: string, id: ID, payload?: unknown, options?: { score?: number; performAt?: Date | number; header?: Record<string, string> }): void;
  /** Reports how far the job is. */
  note(note: Note): Promise<void>;
}

/** An event for which handler.events of the node's configuration asks. */
export interface Event {
  kind: 'exhausted' | 'buried' | 'recovered';
  queue: string;
  shard: number;
  jobs?: Array<{ id?: string; id_base64?: string; retry_count: number; payloads: unknown[]; error: string }>;
  recovered?: number;
  crashes?: number;
  from?: string;
}

export class Handler {
  private constructor();
  /** Takes the function that gets events. */
  onEvent(f: (event: Event) => unknown): this;
  /** Handles batches of the node that has started this process. Resolves when the node ends it. */
  run(): Promise<void>;
  /**
   * Returns a listener for http.createServer that handles batches which a node posts. A request must carry the token, as
   * the password of the URL of handler.http, or as a bearer token. Notes go to a node by client.
   */
  listener(
    token: string,
    options?: { client?: Client; maxBytes?: number },
  ): (request: IncomingMessage, response: ServerResponse) => Promise<void>;
}

/**
 * Makes a handler of a function, which gets each job of a batch in turn. If it returns, the job is done. Bury, Postpone and
 * Throttle say otherwise. Any other error is the job's failure, and the job is retried.
 */
export function handler(f: (job: Job) => unknown): Handler;
