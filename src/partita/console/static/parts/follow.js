// @ts-check
import {get} from "../api.js";

const POLL_MS = 500;

/**
 * Follow a job until it ends.
 * @param {string} id
 * @param {(job: any) => void} changed called after every look at it
 */
export async function followJob(id, changed) {
  for (;;) {
    const job = await get(`/jobs/${id}`);
    changed(job);
    if (job.state !== "running") return job;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
